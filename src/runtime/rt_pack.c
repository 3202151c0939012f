/* `weir pack`: the model once more, with its quantized matrices in the kernels' own layout and every tensor
 * at the beginning of a block. It passes through two buffers, tensor by tensor; vocabularies go from file to
 * file.
 */
#include "rt_internal.h"

#include <string.h>

#define PIECE_BYTES (UINT64_C(1) << 20)
/* Left on the disk beside the new file. */
#define SPARE_BYTES (UINT64_C(16) << 20)

_Static_assert(FMT_PACK_ROWS == KERN_PACK_ROWS, "files and kernels must agree on the size of a group");

typedef struct packing {
    weir_model *model;
    const weir_pack_options *options;
    const char *path;
    fmt_writer *writer;
    bool *pack;        /* per tensor */
    uint8_t *in, *out; /* buffer_bytes each */
    uint64_t buffer_bytes;
    uint64_t done_bytes, total_bytes;
    weir_pack_result result;
} packing;

void weir_pack_options_init(weir_pack_options *o)
{
    *o = (weir_pack_options){.struct_size = sizeof *o};
}

/* What a single file of ours says anew, or not at all. */
static bool is_left_out(const char *key)
{
    return strcmp(key, "general.alignment") == 0 || strncmp(key, "split.", 6) == 0;
}

static weir_status check_source(const packing *p, weir_error *err)
{
    const weir_model *m = p->model;
    const char *format = fmt_model_format(m->file), *name = base_file_path(fmt_model_file(m->file, 0));
    weir_status status = rt_model_runs(m, err);
    if (status != WEIR_OK) return status;
    if (fmt_model_is_packed(m->file))
        return base_fail(err, WEIR_ERR_UNSUPPORTED, "%s: packed already; use it as it is", name);
    if (strncmp(format, "GGUF", 4) != 0)
        return base_fail(
            err, WEIR_ERR_UNSUPPORTED,
            "%s: %s holds floats, which have no packed layout; convert the model to a quantized GGUF "
            "file and pack that",
            name, format);
    for (uint32_t i = 0; i < fmt_model_n_files(m->file); i++)
        if (base_file_is_at(fmt_model_file(m->file, i), p->path))
            return base_fail(err, WEIR_ERR_INVALID_ARGUMENT,
                             "%s: that is the model itself; give the packed file another name", p->path);
    if (!p->options->force && base_file_exists(p->path))
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT,
                         "%s: there is a file of this name; give another one, or --force to replace it",
                         p->path);
    return WEIR_OK;
}

/* Marks the matrices that products alone read and whose type has a packed layout. */
static weir_status choose_tensors(packing *p, weir_error *err)
{
    const fmt_model *file = p->model->file;
    p->pack =
        base_alloc_array(p->model->env, BASE_TAG_METADATA, fmt_model_n_tensors(file), sizeof *p->pack, err);
    if (p->pack == NULL) return err->code;
    mem_weight_info w;
    uint64_t longest = 0;
    for (uint32_t id = 0; mem_component_weight(p->model->component, id, &w); id++) {
        const fmt_tensor *t = fmt_model_find_tensor(file, w.name);
        if (t == NULL || !w.streamable || w.by_row || w.n_rows < FMT_PACK_ROWS || t->n_dims != 2) continue;
        if (!kern_can_pack(t->dtype)) continue;
        p->pack[fmt_model_tensor_index(file, t)] = true;
        longest = base_max(longest, w.row_bytes);
        p->result.n_packed++;
        p->result.packed_bytes += t->bytes;
    }
    if (p->result.n_packed == 0)
        return base_fail(
            err, WEIR_ERR_UNSUPPORTED,
            "%s: no weight has a type that can be packed (floats cannot); there is nothing to gain",
            base_file_path(fmt_model_file(file, 0)));
    p->total_bytes = p->model->weight_bytes;
    p->result.other_bytes = p->total_bytes - p->result.packed_bytes;
    p->result.n_other = (uint32_t)fmt_model_n_tensors(file) - p->result.n_packed;
    uint64_t group;
    if (!base_mul(longest, FMT_PACK_ROWS, &group)) group = UINT64_MAX / 2;
    p->buffer_bytes = base_max(PIECE_BYTES, group);
    p->in = base_pages_alloc(p->model->env, BASE_TAG_IO, p->buffer_bytes, false, err);
    if (p->in == NULL) return err->code;
    p->out = base_pages_alloc(p->model->env, BASE_TAG_IO, p->buffer_bytes, false, err);
    return p->out != NULL ? WEIR_OK : err->code;
}

static weir_status declare(packing *p, weir_error *err)
{
    const fmt_model *file = p->model->file;
    weir_status status = WEIR_OK;
    for (uint64_t i = 0; i < fmt_model_n_values(file) && status == WEIR_OK; i++) {
        const fmt_value *v = fmt_model_value(file, i);
        if (!is_left_out(v->key)) status = fmt_writer_copy(p->writer, file, v, err);
    }
    if (status == WEIR_OK) status = fmt_writer_pack(p->writer, err);
    for (uint64_t i = 0; i < fmt_model_n_tensors(file) && status == WEIR_OK; i++) {
        const fmt_tensor *t = fmt_model_tensor(file, i);
        status = p->pack[i] ? fmt_writer_packed_tensor(p->writer, t->name, t->dtype, t->dims, err)
                            : fmt_writer_tensor(p->writer, t->name, t->dtype, t->n_dims, t->dims, err);
    }
    return status;
}

static weir_status check_space(const packing *p, weir_error *err)
{
    uint64_t there = base_disk_free(p->path), wanted = rt_add(p->result.file_bytes, SPARE_BYTES);
    if (there >= wanted) return WEIR_OK;
    char a[32], b[32];
    return base_fail(
        err, WEIR_ERR_IO,
        "%s: the packed file takes %s, %s are free on that disk; free some space, or name a file on "
        "another disk",
        p->path, base_size_text(wanted, a), base_size_text(there, b));
}

/* Whole rows of a packed tensor: groups permuted, what is behind the last whole group as it is. */
static const uint8_t *pack_rows(packing *p, uint32_t dtype, uint64_t row_bytes, uint64_t bytes)
{
    uint64_t group = row_bytes * FMT_PACK_ROWS, at = 0;
    for (; at + group <= bytes; at += group) kern_pack(dtype, p->in + at, row_bytes, p->out + at);
    memcpy(p->out + at, p->in + at, bytes - at);
    return p->out;
}

static weir_status copy_tensor(packing *p, const fmt_tensor *t, bool pack, weir_error *err)
{
    base_file *f = fmt_model_file(p->model->file, t->file);
    uint64_t row_bytes = 0, piece = p->buffer_bytes;
    if (pack) {
        base_dtype_row_bytes(t->dtype, t->dims[0], &row_bytes); /* checked when the model was opened */
        piece -= piece % (row_bytes * FMT_PACK_ROWS);
    }
    for (uint64_t done = 0; done < t->bytes;) {
        uint64_t n = base_min(piece, t->bytes - done);
        if (p->options->stop != NULL && p->options->stop(p->options->stop_arg))
            return base_fail(err, WEIR_ERR_CANCELLED, "cancelled by the caller; nothing was written");
        weir_status status = base_file_read(f, t->offset + done, p->in, n, err);
        if (status != WEIR_OK) return status;
        base_file_drop_cache(f, t->offset + done, n);
        status = fmt_writer_data(p->writer, pack ? pack_rows(p, t->dtype, row_bytes, n) : p->in, n, err);
        if (status != WEIR_OK) return status;
        done += n;
        p->done_bytes += n;
        if (p->options->progress != NULL)
            p->options->progress(p->options->progress_arg, p->done_bytes, p->total_bytes);
    }
    return WEIR_OK;
}

static weir_status write_model(packing *p, weir_error *err)
{
    const fmt_model *file = p->model->file;
    weir_status status = declare(p, err);
    if (status != WEIR_OK) return status;
    p->result.file_bytes = fmt_writer_file_bytes(p->writer);
    status = check_space(p, err);
    for (uint64_t i = 0; i < fmt_model_n_tensors(file) && status == WEIR_OK; i++)
        status = copy_tensor(p, fmt_model_tensor(file, i), p->pack[i], err);
    return status == WEIR_OK ? fmt_writer_finish(p->writer, err) : status;
}

weir_status weir_pack(weir_model *m, const weir_pack_options *o, const char *path, weir_pack_result *out,
                      weir_error *err)
{
    weir_error local, failure = {0};
    err = rt_error(err, &local);
    weir_pack_options defaults;
    weir_pack_options_init(&defaults);
    if (o == NULL) o = &defaults;
    if (o->struct_size < sizeof *o || path == NULL || path[0] == '\0')
        return base_fail(
            err, WEIR_ERR_INVALID_ARGUMENT,
            "weir_pack wants options from weir_pack_options_init and the name of a file to write");
    packing p = {.model = m, .options = o, .path = path, .result = {.struct_size = sizeof p.result}};
    if (rt_model_is_here(m, &failure) == WEIR_OK && check_source(&p, &failure) == WEIR_OK &&
        choose_tensors(&p, &failure) == WEIR_OK &&
        fmt_writer_create(m->env, FMT_WRITE_GGUF, path, &p.writer, &failure) == WEIR_OK) {
        if (!o->force) fmt_writer_keep_existing(p.writer);
        write_model(&p, &failure);
    }
    fmt_writer_destroy(p.writer);
    base_pages_free(m->env, BASE_TAG_IO, p.out, p.buffer_bytes);
    base_pages_free(m->env, BASE_TAG_IO, p.in, p.buffer_bytes);
    base_free(m->env, p.pack);
    if (failure.code != WEIR_OK)
        *err = failure;
    else if (out != NULL)
        *out = p.result;
    return failure.code;
}
