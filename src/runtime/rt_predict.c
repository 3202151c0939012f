/* How fast decoding will be: the plan's ring played through (mem_plan_predict) with the rate of the storage
 * and the rates at which this machine's kernels work off weights of this model's type and size. All are
 * measured (rt_calibrate.c); of the model only its storage is read. */
#include "rt_internal.h"

/* What is known of the storage; measured where nothing is. */
static weir_status storage_rate(weir_model *m, double given, mem_speed *speed, weir_error *err)
{
    enum { SHORT_BYTES = 128 << 20 };
    weir_storage s = {.struct_size = sizeof s};
    speed->storage_bytes_per_s = given;
    speed->latency_s = 5e-5;
    weir_status status = weir_model_storage(m, given <= 0, &s, err);
    if (status != WEIR_OK) return status;
    if (s.bytes_per_s > 0) speed->latency_s = s.latency_seconds;
    if (given > 0) return WEIR_OK;
    speed->storage_bytes_per_s = s.bytes_per_s;
    if (s.bytes_per_s > 0) return WEIR_OK;
    return weir_measure_storage(m, SHORT_BYTES, &speed->storage_bytes_per_s, err);
}

/* The ring reads in its own sizes, and reads take longer while products run beside them. */
static double rate_beside(const rt_plan *plan, double rate, const rt_rates *rates)
{
    rate *= rates->ring_share;
    double streams = (double)plan->memory.streamed_bytes;
    double beside = rates->read_s_per_computed_byte * (double)plan->view.weight_bytes_per_pass;
    return streams > 0 ? streams / (streams / rate + beside) : rate;
}

static void fill(const rt_plan *plan, const mem_speed *speed, double seconds, weir_prediction *out)
{
    double streams = (double)plan->memory.streamed_bytes;
    double slowest = (double)plan->view.weight_bytes_per_pass / speed->compute_bytes_per_s;
    if (streams > 0 && streams / speed->storage_bytes_per_s > slowest)
        slowest = streams / speed->storage_bytes_per_s;
    *out = (weir_prediction){
        .struct_size = sizeof *out,
        .storage_bytes_per_s = streams > 0 ? speed->storage_bytes_per_s : 0,
        .compute_bytes_per_s = speed->compute_bytes_per_s,
        .latency_seconds = speed->latency_s,
        .seconds_per_token = seconds,
        .tokens_per_s = 1 / seconds,
        .limit_tokens_per_s = 1 / slowest,
    };
}

weir_status weir_model_predict(weir_model *m, const weir_load_options *o, double storage_bytes_per_s,
                               weir_prediction *out, weir_error *err)
{
    weir_error local;
    err = rt_error(err, &local);
    rt_options options;
    mem_speed speed = {.storage_bytes_per_s = 1e9};
    weir_status status = rt_model_runs(m, err);
    if (status == WEIR_OK) status = rt_options_resolve(m, o, &options, err);
    if (status == WEIR_OK && options.device.kind != RT_DEVICE_CPU)
        status =
            base_fail(err, WEIR_ERR_UNSUPPORTED, "speed is predicted for the CPU only, not for a device");
    if (status != WEIR_OK) return status;
    base_ledger_view before;
    rt_ledger_read(m->context, &before);
    if (m->run != NULL) before = m->run->before;
    dev_device *device;
    status = rt_device_create(m, &options, &before, &device, err);
    if (status != WEIR_OK) return status;
    rt_plan plan;
    double seconds = 0;
    status = rt_plan_make(m, &options, device, &before, &plan, err);
    if (status == WEIR_OK && !plan.view.fits) status = WEIR_ERR_BUDGET; /* err has the advice */
    if (status == WEIR_OK && plan.memory.ring_bytes != 0) {
        status = storage_rate(m, storage_bytes_per_s, &speed, err);
        /* What was measured only now may have changed the ring. */
        if (status == WEIR_OK) status = rt_plan_make(m, &options, device, &before, &plan, err);
    }
    rt_rates rates;
    if (status == WEIR_OK) status = rt_calibrate(m, device, &options, &plan, &rates, err);
    dev_destroy(device);
    if (status != WEIR_OK) return status;
    speed.compute_bytes_per_s = 1 / rates.stay_s_per_byte;
    mem_speed play = speed;
    if (plan.memory.ring_bytes != 0) {
        play.tile_bytes_per_s = 1 / rates.tile_s_per_byte;
        play.storage_bytes_per_s = rate_beside(&plan, speed.storage_bytes_per_s, &rates);
    }
    status = mem_plan_predict(m->component, &plan.memory, &play, &seconds, err);
    if (status == WEIR_OK) fill(&plan, &speed, seconds > 0 ? seconds : 1e-9, out);
    if (status == WEIR_OK) status = rt_predict_rows(m, &options, &plan, &play, out, err);
    return status;
}
