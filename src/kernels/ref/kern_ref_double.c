/* Double arithmetic of our own: exp, log, pow and the rotation tables, the same on every machine, since no
 * libm function but the exact fma is called. Series are Taylor's; where a double alone would lose bits that
 * pow needs, a number is the unevaluated sum of two doubles (Dekker, Knuth: the errors of a sum and, with
 * fma, of a product are doubles themselves). */
#include "kernels/kern_tables.h"

#include <math.h>
#include <string.h>

#define LOG2E     0x1.71547652b82fep+0
#define LN2_HI    0x1.62e42fefa38p-1 /* 42 bits: times an exponent it is exact */
#define LN2_LO    0x1.ef35793c7673p-45
#define TWO_PI    0x1.45f306dc9c883p-1 /* 2 / pi */
#define PI2_HI    0x1.921fb54442d18p+0 /* pi / 2 */
#define PI2_LO    0x1.1a62633145c07p-54
#define THIRD_HI  0x1.5555555555555p-2
#define THIRD_LO  0x1.5555555555555p-56
#define ROUNDER   0x1.8p52 /* added and taken away again: the nearest integer, ties to even */
#define ANGLE_MAX 0x1p45   /* beyond, an angle is refused (NaN) */

typedef struct pair {
    double hi, lo;
} pair;

static double from_bits(uint64_t bits)
{
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
static uint64_t to_bits(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}
static double infinity(void)
{
    return from_bits(0x7ff0000000000000u);
}
static double not_a_number(void)
{
    return from_bits(0x7ff8000000000000u);
}
static double power_of_two(int64_t n) /* -1022 <= n <= 1023 */
{
    return from_bits((uint64_t)(n + 1023) << 52);
}

static pair exact_sum(double a, double b)
{
    double s = a + b, t = s - a;
    return (pair){s, (a - (s - t)) + (b - t)};
}
static pair exact_product(double a, double b)
{
    double p = a * b;
    return (pair){p, fma(a, b, -p)};
}
/* Relative error about 2^-104; the result is not renormalized. */
static pair pair_product(pair a, pair b)
{
    pair p = exact_product(a.hi, b.hi);
    p.lo += a.hi * b.lo + a.lo * b.hi;
    return p;
}

/* e^(x.hi + x.lo). */
static double exp_pair(pair x)
{
    static const double inverse_factorial[] = {
        1.0 / 2,     1.0 / 6,      1.0 / 24,      1.0 / 120,      1.0 / 720,       1.0 / 5040,
        1.0 / 40320, 1.0 / 362880, 1.0 / 3628800, 1.0 / 39916800, 1.0 / 479001600, 1.0 / 6227020800};
    if (x.hi != x.hi) return x.hi;
    if (x.hi > 709.8) return infinity();
    if (x.hi < -745.2) return 0.0;
    double n = (x.hi * LOG2E + ROUNDER) - ROUNDER;
    pair r = exact_sum(fma(n, -LN2_HI, x.hi), -(n * LN2_LO));
    r = exact_sum(r.hi, r.lo + x.lo); /* what is left in r.lo is too small to matter to the higher terms */
    double p = inverse_factorial[11];
    for (int i = 10; i >= 0; i--) p = fma(p, r.hi, inverse_factorial[i]);
    p = 1.0 + (r.hi + fma(p, r.hi * r.hi, r.lo));
    int64_t a = (int64_t)n >> 1, b = (int64_t)n - a;
    return p * power_of_two(a) * power_of_two(b);
}

/* log of a positive finite x: x = m 2^k with m in [sqrt(1/2), sqrt(2)], s = (m - 1) / (m + 1),
 * log m = 2 s (1 + t / 3 + t^2 / 5 + ...), t = s^2 <= 0.0295. The first two terms are pairs. */
static pair log_pair(double x)
{
    int64_t k = 0;
    if (x < 0x1p-1022) {
        x *= 0x1p54;
        k = -54;
    }
    k += (int64_t)(to_bits(x) >> 52) - 1023;
    double m = from_bits((to_bits(x) & 0xfffffffffffffu) | 0x3ff0000000000000u);
    if (m > 0x1.6a09e667f3bcdp+0) {
        m *= 0.5;
        k++;
    }
    pair g = exact_sum(m, 1.0), s;
    s.hi = (m - 1.0) / g.hi;
    s.lo = (fma(-s.hi, g.hi, m - 1.0) - s.hi * g.lo) / g.hi;
    pair t = pair_product(s, s);
    double q = 0.0;
    for (int i = 25; i >= 5; i -= 2) q = fma(q, t.hi, 1.0 / i);
    pair u = pair_product(t, (pair){THIRD_HI, THIRD_LO});
    pair v = exact_sum(1.0, u.hi);
    v.lo += u.lo + q * (t.hi * t.hi);
    pair w = pair_product((pair){2.0 * s.hi, 2.0 * s.lo}, v);
    pair total = exact_sum((double)k * LN2_HI, w.hi);
    total.lo += w.lo + (double)k * LN2_LO;
    return exact_sum(total.hi, total.lo);
}

double kern_exp(double x)
{
    return exp_pair((pair){x, 0.0});
}

double kern_log(double x)
{
    if (x != x || x == infinity()) return x;
    if (x == 0.0) return -infinity();
    if (x < 0.0) return not_a_number();
    return log_pair(x).hi;
}

double kern_pow(double x, double y)
{
    if (y == 0.0 || x == 1.0) return 1.0;
    if (x != x || y != y || x < 0.0) return not_a_number();
    if (x == 0.0 || x == infinity()) return (x == 0.0) == (y < 0.0) ? infinity() : 0.0;
    pair l = log_pair(x);
    double product = y * l.hi;
    if (!(product > -746.0)) return 0.0;
    if (!(product < 710.0)) return infinity();
    pair e = exact_product(y, l.hi);
    e.lo += y * l.lo;
    return exp_pair(e);
}

/* cos and sin of x, |x| <= ANGLE_MAX, absolute error below 2^-52: x - n pi/2 with the product kept as a pair,
 * then Taylor's series for |r| <= pi/4, the first terms left out being r^19 / 19! and r^18 / 18!. */
static void cos_sin(double x, double *cosine, double *sine)
{
    if (!(x <= ANGLE_MAX && x >= -ANGLE_MAX)) {
        *cosine = *sine = not_a_number();
        return;
    }
    double n = (x * TWO_PI + ROUNDER) - ROUNDER;
    pair p = exact_product(n, PI2_HI);
    double r = ((x - p.hi) - p.lo) - n * PI2_LO;
    double t = r * r, s = 0.0, c = 0.0;
    for (int i = 17; i >= 3; i -= 2) s = fma(-s, t, 1.0) / (i * (i - 1));
    s = r * fma(-s, t, 1.0);
    for (int i = 16; i >= 2; i -= 2) c = fma(-c, t, 1.0) / (i * (i - 1));
    c = fma(-c, t, 1.0);
    switch ((int64_t)n & 3) {
    case 0: *cosine = c, *sine = s; break;
    case 1: *cosine = -s, *sine = c; break;
    case 2: *cosine = -c, *sine = -s; break;
    default: *cosine = s, *sine = -c; break;
    }
}

void kern_rope_table(int32_t position, const double *inv_freq, size_t n_half, double mscale, float *table)
{
    for (size_t i = 0; i < n_half; i++) {
        double cosine, sine;
        cos_sin((double)position * inv_freq[i], &cosine, &sine);
        table[i] = (float)(cosine * mscale);
        table[n_half + i] = (float)(sine * mscale);
    }
}
