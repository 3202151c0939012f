/* Streams: queues in order, and tickets for what they were given. */
#include "dev_opencl_internal.h"

#include <string.h>

weir_status opencl_streams_create(opencl_device *d, weir_error *err)
{
    cl_int rc = CL_SUCCESS;

    for (uint32_t i = 0; i < DEV_MAX_STREAMS && rc == CL_SUCCESS; i++)
        d->stream[i].queue = d->api->CreateCommandQueue(d->context, d->id, 0, &rc);
    if (rc == CL_SUCCESS) d->own_queue = d->api->CreateCommandQueue(d->context, d->id, 0, &rc);
    return rc == CL_SUCCESS ? WEIR_OK : opencl_fail(d, rc, "CreateCommandQueue", err);
}

/* Takes events off the front for as long as they have ended, or all of them. Lock held. */
static void stream_reap(opencl_device *d, opencl_stream *s, bool all)
{
    while (s->n > 0) {
        cl_int state = CL_QUEUED;
        cl_event event = s->event[s->first];

        if (d->api->GetEventInfo(event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof(state), &state, NULL) !=
            CL_SUCCESS)
            state = CL_DEVICE_NOT_AVAILABLE;
        if (state > CL_COMPLETE && !all) return;
        if (state < CL_COMPLETE && s->failed == CL_SUCCESS) s->failed = state;
        s->done = s->value[s->first];
        d->api->ReleaseEvent(event);
        s->first = (s->first + 1) % OPENCL_EVENTS;
        s->n--;
    }
}

/* The event of the first ticket at or behind t, with a reference for the caller; NULL when t is reached. */
static cl_event ticket_event(opencl_device *d, dev_ticket t)
{
    opencl_stream *s = &d->stream[t.stream];
    cl_event event = NULL;

    pthread_mutex_lock(&d->lock);
    stream_reap(d, s, false);
    for (uint32_t i = 0; i < s->n && event == NULL; i++) {
        uint32_t at = (s->first + i) % OPENCL_EVENTS;

        if (s->value[at] >= t.value) event = s->event[at];
    }
    if (t.value <= s->done) event = NULL;
    if (event != NULL) d->api->RetainEvent(event);
    pthread_mutex_unlock(&d->lock);
    return event;
}

static bool stream_is_valid(dev_ticket t)
{
    return t.stream < DEV_MAX_STREAMS;
}

static weir_status stream_error(const opencl_device *d, uint32_t stream, cl_int code, weir_error *err)
{
    return base_fail(err, code == CL_MEM_OBJECT_ALLOCATION_FAILURE ? WEIR_ERR_DEVICE_MEMORY : WEIR_ERR_DEVICE,
                     "device opencl:%u (%s): what %s %u was given failed: %s (%d)", d->index, d->info.name,
                     stream == DEV_STREAM_COMPUTE ? "compute stream" : "copy stream", stream,
                     opencl_error_text(code), (int)code);
}

weir_status opencl_sync(dev_device *device, dev_ticket t, weir_error *err)
{
    opencl_device *d = opencl_of(device);
    cl_int rc = CL_SUCCESS, failed;
    cl_event event;

    if (!stream_is_valid(t)) return base_fail(err, WEIR_ERR_INTERNAL, "ticket of stream %u", t.stream);
    event = ticket_event(d, t);
    if (event != NULL) {
        rc = d->api->WaitForEvents(1, &event);
        d->api->ReleaseEvent(event);
    }
    pthread_mutex_lock(&d->lock);
    stream_reap(d, &d->stream[t.stream], false);
    failed = d->stream[t.stream].failed;
    if (failed == CL_SUCCESS && rc != CL_SUCCESS) failed = d->stream[t.stream].failed = rc;
    pthread_mutex_unlock(&d->lock);
    return failed == CL_SUCCESS ? WEIR_OK : stream_error(d, t.stream, failed, err);
}

bool opencl_reached(dev_device *device, dev_ticket t)
{
    opencl_device *d = opencl_of(device);
    cl_event event;

    if (t.value == 0 || !stream_is_valid(t)) return true;
    event = ticket_event(d, t);
    if (event != NULL) d->api->ReleaseEvent(event);
    return event == NULL;
}

opencl_turn opencl_turn_begin(opencl_device *d, uint32_t stream)
{
    opencl_stream *s = &d->stream[stream];
    opencl_turn turn;

    pthread_mutex_lock(&d->lock);
    turn.alone = s->entering++ == 0;
    turn.number = ++s->n_turns;
    pthread_mutex_unlock(&d->lock);
    return turn;
}

void opencl_turn_end(opencl_device *d, uint32_t stream)
{
    pthread_mutex_lock(&d->lock);
    d->stream[stream].entering--;
    pthread_mutex_unlock(&d->lock);
}

/* Makes an event that stands for all that the stream was given its newest ticket; takes the reference. */
static weir_status ticket_put(opencl_device *d, uint32_t stream, opencl_turn turn, cl_event event,
                              dev_ticket *out, weir_error *err)
{
    opencl_stream *s = &d->stream[stream];
    cl_int rc = d->api->Flush(s->queue); /* others may wait for it */

    for (;;) {
        cl_event oldest = NULL;

        pthread_mutex_lock(&d->lock);
        stream_reap(d, s, false);
        if (s->n < OPENCL_EVENTS) {
            uint32_t at = (s->first + s->n++) % OPENCL_EVENTS;

            s->event[at] = event;
            s->value[at] = ++s->given;
            /* Only where nobody else's command can have come behind this one. */
            if (turn.alone && s->n_turns == turn.number) s->covered = turn.number;
            if (out != NULL) *out = (dev_ticket){stream, s->given};
        } else {
            oldest = s->event[s->first];
            d->api->RetainEvent(oldest);
        }
        pthread_mutex_unlock(&d->lock);
        if (oldest == NULL) break;
        rc = d->api->WaitForEvents(1, &oldest);
        d->api->ReleaseEvent(oldest);
    }
    return rc == CL_SUCCESS ? WEIR_OK : opencl_fail(d, rc, "Flush", err);
}

weir_status opencl_mark(dev_device *device, uint32_t stream, dev_ticket *out, weir_error *err)
{
    opencl_device *d = opencl_of(device);
    cl_event event;
    cl_int rc;

    if (stream >= DEV_MAX_STREAMS) return base_fail(err, WEIR_ERR_INTERNAL, "stream %u", stream);
    opencl_stream *s = &d->stream[stream];
    pthread_mutex_lock(&d->lock);
    bool known = s->entering == 0 && s->covered == s->n_turns;
    if (known) *out = (dev_ticket){stream, s->given};
    pthread_mutex_unlock(&d->lock);
    if (known) return WEIR_OK; /* nothing came behind the newest ticket */
    opencl_turn turn = opencl_turn_begin(d, stream);
    rc = d->api->EnqueueMarkerWithWaitList(s->queue, 0, NULL, &event);
    weir_status status = rc == CL_SUCCESS ? ticket_put(d, stream, turn, event, out, err)
                                          : opencl_fail(d, rc, "EnqueueMarkerWithWaitList", err);
    opencl_turn_end(d, stream);
    return status;
}

weir_status opencl_wait_on(dev_device *device, uint32_t stream, dev_ticket t, weir_error *err)
{
    opencl_device *d = opencl_of(device);
    cl_event event;
    cl_int rc;

    if (stream >= DEV_MAX_STREAMS || !stream_is_valid(t))
        return base_fail(err, WEIR_ERR_INTERNAL, "stream %u waits for stream %u", stream, t.stream);
    if (stream == t.stream) return WEIR_OK;
    event = ticket_event(d, t);
    if (event == NULL) return WEIR_OK;
    opencl_turn_begin(d, stream);
    rc = d->api->EnqueueBarrierWithWaitList(d->stream[stream].queue, 1, &event, NULL);
    opencl_turn_end(d, stream);
    d->api->ReleaseEvent(event);
    return rc == CL_SUCCESS ? WEIR_OK : opencl_fail(d, rc, "EnqueueBarrierWithWaitList", err);
}

weir_status opencl_drain(opencl_device *d, uint32_t stream, weir_error *err)
{
    cl_int rc = d->api->Finish(d->stream[stream].queue);

    return rc == CL_SUCCESS ? WEIR_OK : opencl_fail(d, rc, "Finish", err);
}

weir_status opencl_recover(dev_device *device, weir_error *err)
{
    opencl_device *d = opencl_of(device);
    weir_status status = WEIR_OK;

    for (uint32_t i = 0; i < DEV_MAX_STREAMS; i++) {
        weir_status one = opencl_drain(d, i, status == WEIR_OK ? err : NULL);

        if (status == WEIR_OK) status = one;
        pthread_mutex_lock(&d->lock);
        stream_reap(d, &d->stream[i], true);
        d->stream[i].failed = CL_SUCCESS;
        pthread_mutex_unlock(&d->lock);
    }
    return status;
}

void opencl_streams_destroy(opencl_device *d)
{
    for (uint32_t i = 0; i < DEV_MAX_STREAMS; i++) {
        if (d->stream[i].queue == NULL) continue;
        d->api->Finish(d->stream[i].queue);
        stream_reap(d, &d->stream[i], true);
        d->api->ReleaseCommandQueue(d->stream[i].queue);
    }
    if (d->own_queue != NULL) d->api->ReleaseCommandQueue(d->own_queue);
}

/* ---- copies ---- */
static weir_status copy_begin(opencl_device *d, uint32_t stream, const char *what, weir_error *err)
{
    if (stream >= DEV_MAX_STREAMS) return base_fail(err, WEIR_ERR_INTERNAL, "stream %u", stream);
    if (base_fault(d->env, BASE_FAULT_COPY, NULL))
        return base_fail(err, WEIR_ERR_DEVICE, "device opencl:%u (%s): %s failed: a fault point asked for it",
                         d->index, d->info.name, what);
    return WEIR_OK;
}

/* What every copy ends with: a ticket when one is wanted. */
static weir_status copy_end(opencl_device *d, uint32_t stream, opencl_turn turn, cl_int rc, cl_event event,
                            const char *call, dev_ticket *done, weir_error *err)
{
    weir_status status = WEIR_OK;

    if (rc != CL_SUCCESS)
        status = opencl_fail(d, rc, call, err);
    else if (done == NULL)
        d->api->Flush(d->stream[stream].queue);
    else
        status = ticket_put(d, stream, turn, event, done, err);
    opencl_turn_end(d, stream);
    return status;
}

/* A copy between host memory and the device; it waits where the host memory is not pinned. */
static weir_status copy_host(dev_device *device, uint32_t stream, const void *address, void *to_host,
                             const void *from_host, uint64_t bytes, dev_ticket *done, weir_error *err)
{
    opencl_device *d = opencl_of(device);
    bool up = from_host != NULL;
    weir_status status = copy_begin(d, stream, up ? "a copy to the device" : "a copy from the device", err);
    cl_event event = NULL, *wanted = done != NULL ? &event : NULL;
    cl_bool wait = !opencl_is_pinned(d, up ? from_host : to_host, bytes);
    uint64_t offset;
    cl_mem mem;
    cl_int rc;

    if (status != WEIR_OK) return status;
    if (bytes == 0) return done != NULL ? opencl_mark(device, stream, done, err) : WEIR_OK;
    status = opencl_lookup(d, address, bytes, &mem, &offset, err);
    if (status != WEIR_OK) return status;
    opencl_turn turn = opencl_turn_begin(d, stream);
    if (up)
        rc = d->api->EnqueueWriteBuffer(d->stream[stream].queue, mem, wait, (size_t)offset, (size_t)bytes,
                                        from_host, 0, NULL, wanted);
    else
        rc = d->api->EnqueueReadBuffer(d->stream[stream].queue, mem, wait, (size_t)offset, (size_t)bytes,
                                       to_host, 0, NULL, wanted);
    return copy_end(d, stream, turn, rc, event, up ? "EnqueueWriteBuffer" : "EnqueueReadBuffer", done, err);
}

weir_status opencl_upload(dev_device *device, uint32_t stream, void *dst, const void *host, uint64_t bytes,
                          dev_ticket *done, weir_error *err)
{
    return copy_host(device, stream, dst, NULL, host, bytes, done, err);
}

weir_status opencl_download(dev_device *device, uint32_t stream, void *host, const void *src, uint64_t bytes,
                            dev_ticket *done, weir_error *err)
{
    return copy_host(device, stream, src, host, NULL, bytes, done, err);
}

weir_status opencl_copy(dev_device *device, uint32_t stream, void *dst, const void *src, uint64_t bytes,
                        dev_ticket *done, weir_error *err)
{
    opencl_device *d = opencl_of(device);
    weir_status status = copy_begin(d, stream, "a copy within the device", err);
    uint64_t to, from;
    cl_mem dst_mem, src_mem;
    cl_event event = NULL;
    cl_int rc;

    if (status != WEIR_OK) return status;
    if (bytes == 0) return done != NULL ? opencl_mark(device, stream, done, err) : WEIR_OK;
    status = opencl_lookup(d, dst, bytes, &dst_mem, &to, err);
    if (status == WEIR_OK) status = opencl_lookup(d, src, bytes, &src_mem, &from, err);
    if (status != WEIR_OK) return status;
    opencl_turn turn = opencl_turn_begin(d, stream);
    rc = d->api->EnqueueCopyBuffer(d->stream[stream].queue, src_mem, dst_mem, (size_t)from, (size_t)to,
                                   (size_t)bytes, 0, NULL, done != NULL ? &event : NULL);
    return copy_end(d, stream, turn, rc, event, "EnqueueCopyBuffer", done, err);
}
