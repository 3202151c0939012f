/* The pipeline's kernels, one text for every device: included as it is, it is C; with PIPELINE_TEXT around
 * it, it is a string that OpenCL compiles. So there is no preprocessor line inside. What each needs defined
 * is in pipeline_both.h: GLOBAL, PTR (a parameter that is an address), AT (what it points to), KERNEL and
 * ITEM.
 *
 * Only operations that IEEE 754 rounds the same everywhere: fma, products, minimum and maximum. */
PIPELINE_TEXT(
    /* out[i] = clamp(bias[i] + sum over j of weight[i][j] x in[j]) */
    KERNEL dense(PTR(in), PTR(weight), PTR(bias), PTR(out), uint width, uint n) {
    ITEM(i, n)
    {
        GLOBAL const float *x = AT(const float, in);
        GLOBAL const float *w = AT(const float, weight) + (size_t)i * width;
        float sum = AT(const float, bias)[i];
        for (uint j = 0; j < width; j++) sum = fma(w[j], x[j], sum);
        AT(float, out)[i] = fmin(fmax(sum, -1.0f), 1.0f);
    }
    }
    /* state[i] = keep x state[i] + gain x change[i] + text[i] */
    KERNEL blend(PTR(state), PTR(change), PTR(text), float keep, float gain, uint n) {
        ITEM(i, n) {
            float v = fma(gain, AT(const float, change)[i], keep * AT(float, state)[i]);
            AT(float, state)[i] = v + AT(const float, text)[i];
}
})
