#include "engine/record.h"

#include "common/fs.h"
#include "engine/gguf.h"
#include "lvr_config.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/utsname.h>
#include <time.h>

/* Half a second of a fast model's kernels (tens of thousands a second): the writer looks in every 5 ms, and
 * only a segment that takes longer than that to write can cost records (they are counted). A greater ring
 * would cycle through the caches the weights live in: at 2^17 records recording cost 3 %, at 2^14 0.5 %. */
#define LANE_RECORDS (1u << 14)

struct lvr_recorder {
    lvr_trace_writer *writer;
    lvr_trace_lane *lane;
};

lvr_status lvr_recorder_new(lvr_trace_writer *writer, lvr_recorder **ret, lvr_error *err)
{
    lvr_recorder *r = calloc(1, sizeof *r);
    if (!r)
        return lvr_fail(err, LVR_ERR_NOMEM, "out of memory for the recorder");
    r->writer = writer;
    const lvr_status status = lvr_trace_lane_new(writer, LANE_RECORDS, &r->lane, err);
    if (status != LVR_OK) {
        free(r);
        return status;
    }
    *ret = r;
    return LVR_OK;
}

void lvr_recorder_free(lvr_recorder *r)
{
    free(r);
}

lvr_status lvr_recorder_status(lvr_recorder *r, lvr_error *err)
{
    return r ? lvr_trace_writer_status(r->writer, err) : LVR_OK;
}

/* ---- records ---- */

void lvr_record_kernel(lvr_recorder *r, uint64_t round, uint32_t model, uint32_t layer, lvr_op op,
                       uint32_t rows, uint32_t context, lvr_kernel_times t)
{
    if (!r)
        return;
    const lvr_rec_kernel rec = {
        .round = round,
        .model = model,
        .layer = layer,
        .op = (uint32_t)op,
        .unit = LVR_UNIT_CPU,
        .rows = rows,
        .bucket = rows, /* a CPU computes as many rows as there are */
        .context = context,
        .t_submit_ns = t.start_ns,
        .t_start_ns = t.start_ns,
        .t_end_ns = t.end_ns,
    };
    lvr_trace_put(r->lane, LVR_STREAM_KERNELS, &rec);
}

void lvr_record_layer(lvr_recorder *r, const lvr_layer_log *log)
{
    if (!r)
        return;
    const lvr_rec_kernel rec = {
        .round = log->round,
        .model = log->draft,
        .layer = log->layer,
        .op = log->draft ? LVR_OP_DRAFT : LVR_OP_LAYER,
        .unit = (uint32_t)log->unit,
        .rows = log->rows,
        .bucket = log->bucket,
        .context = log->context,
        .t_submit_ns = log->submit_ns,
        .t_start_ns = log->start_ns,
        .t_end_ns = log->end_ns,
    };
    lvr_trace_put(r->lane, LVR_STREAM_KERNELS, &rec);
}

void lvr_record_read(lvr_recorder *r, const lvr_staged_read *read, bool consumed)
{
    if (!r)
        return;
    const lvr_rec_flash rec = {
        .round = consumed ? read->round : UINT64_MAX,
        .layer = read->layer,
        .slice = read->slice,
        .offset = read->done.offset,
        .bytes = read->done.bytes,
        .queue_depth = read->done.queue_depth,
        .cached = !read->done.direct,
        .t_submit_ns = read->done.t_submit_ns,
        .t_start_ns = read->done.t_start_ns,
        .t_end_ns = read->done.t_end_ns,
    };
    lvr_trace_put(r->lane, LVR_STREAM_FLASH, &rec);
}

void lvr_record_round(lvr_recorder *r, const lvr_round_info *info, uint32_t depth, const lvr_round_log *log)
{
    if (!r)
        return;
    const lvr_rec_round rec = {
        .request = info->request,
        .round = info->round,
        .pos = info->position,
        .prefill = info->prefill,
        .n_nodes = info->n_rows,
        .depth = depth,
        .n_kept = info->n_kept,
        .n_accepted = info->n_accepted,
        .n_drafted = info->n_drafted,
        .n_draft_steps = log->draft_steps,
        .t_draft0_ns = log->draft0_ns,
        .t_draft1_ns = log->draft1_ns,
        .t_verify0_ns = log->verify0_ns,
        .t_verify1_ns = log->verify1_ns,
        .t_commit_ns = log->commit_ns,
    };
    lvr_trace_put(r->lane, LVR_STREAM_ROUNDS, &rec);
}

uint32_t lvr_verified_depth(const lvr_round *m)
{
    const lvr_tree *tree = lvr_round_tree(m);
    uint32_t n = 0, depth = 0;
    const uint32_t *rows = lvr_round_rows(m, &n);
    for (uint32_t r = 0; r < n; r++)
        if (tree->nodes[rows[r]].depth > depth)
            depth = tree->nodes[rows[r]].depth;
    return depth;
}

/* Rows ascend by node, and a parent's node number is below its child's. */
static int32_t parent_row(const uint32_t *rows, uint32_t row, int32_t parent)
{
    for (uint32_t r = row; r-- > 0;)
        if (rows[r] == (uint32_t)parent)
            return (int32_t)r;
    return -1;
}

void lvr_record_tree(lvr_recorder *r, const lvr_round *m, const lvr_round_info *info, const uint32_t *kept,
                     uint32_t n_kept)
{
    if (!r)
        return;
    const lvr_tree *tree = lvr_round_tree(m);
    uint32_t n = 0, k = 0;
    const uint32_t *rows = lvr_round_rows(m, &n), *last_layers = lvr_round_last_layers(m);
    for (uint32_t row = 0; row < n; row++) {
        const lvr_node *node = &tree->nodes[rows[row]];
        const bool accepted = k < n_kept && kept[k] == row;
        k += accepted;
        const lvr_rec_round_node rec = {
            .request = info->request,
            .round = info->round,
            .node = row,
            .parent = parent_row(rows, row, node->parent),
            .token = node->token,
            .p_draft = node->p_draft,
            .last_layer = last_layers[row],
            .accepted = accepted,
        };
        lvr_trace_put(r->lane, LVR_STREAM_ROUND_NODES, &rec);
    }
}

void lvr_record_request(lvr_recorder *r, const lvr_request_log *log)
{
    if (!r)
        return;
    const lvr_rec_request rec = {
        .id = log->id,
        .t_arrival_ns = log->arrival_ns,
        .t_first_token_ns = log->first_token_ns,
        .t_done_ns = log->done_ns,
        .n_prompt = log->n_prompt,
        .n_output = log->n_output,
        .domain = log->domain,
        .prompt_hash = log->prompt_hash,
    };
    lvr_trace_put(r->lane, LVR_STREAM_REQUESTS, &rec);
}

void lvr_record_token(lvr_recorder *r, uint64_t request, uint32_t pos, int32_t token, bool is_output)
{
    if (!r)
        return;
    const lvr_rec_token rec = {.request = request, .pos = pos, .token = token, .is_output = is_output};
    lvr_trace_put(r->lane, LVR_STREAM_TOKENS, &rec);
}

/* ---- descriptions ---- */

uint64_t lvr_prompt_hash(const int32_t *tokens, uint32_t n)
{
    lvr_sha256 sha;
    char hex[LVR_SHA256_HEX_BYTES];
    lvr_sha256_init(&sha);
    lvr_sha256_update(&sha, tokens, (size_t)n * sizeof tokens[0]);
    lvr_sha256_hex(&sha, hex);
    hex[16] = '\0';
    return strtoull(hex, NULL, 16);
}

void lvr_trace_model_describe(const lvr_pack *pack, const bool *resident, lvr_trace_model *ret)
{
    const lvr_model_shape *shape = lvr_pack_shape(pack);
    const lvr_pack_tensor *q = lvr_pack_layer_tensor(pack, 0, LVR_ROLE_Q);
    const char *quant = q ? lvr_wtype_name(q->type) : NULL;
    *ret = (lvr_trace_model){
        .n_layers = shape->n_layers,
        .d_model = shape->d_model,
        .n_heads = shape->n_heads,
        .n_kv = shape->n_kv,
        .d_ff = shape->d_ff,
        .vocab = shape->vocab,
    };
    snprintf(ret->name, sizeof ret->name, "%s", shape->name);
    snprintf(ret->arch, sizeof ret->arch, "%s", shape->arch);
    snprintf(ret->quant, sizeof ret->quant, "%s", quant ? quant : "");
    snprintf(ret->sha256, sizeof ret->sha256, "%s", lvr_pack_source_sha256(pack));
    for (uint32_t l = 0; l < shape->n_layers && l < LVR_TRACE_MAX_LAYERS; l++) {
        ret->bytes_per_layer[l] = lvr_pack_layer_bytes(pack, l);
        ret->resident[l] = !resident || resident[l];
    }
}

/* The value of the first line "key<blanks><separator>value" of a file; empty if there is none. */
static void file_value(const char *path, const char *key, char separator, char *ret, size_t n)
{
    lvr_buf text = LVR_BUF_INIT;
    ret[0] = '\0';
    if (lvr_read_file(path, 1 << 22, &text, NULL) != LVR_OK)
        return;
    const size_t key_len = strlen(key);
    for (const char *line = text.data; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        const char *at = line + key_len;
        if (strncmp(line, key, key_len) != 0)
            continue;
        at += strspn(at, " \t");
        if (*at != separator)
            continue;
        at += 1 + strspn(at + 1, " \t\"");
        snprintf(ret, n, "%.*s", (int)strcspn(at, "\"\n"), at);
        break;
    }
    lvr_buf_free(&text);
}

/* Type of the file system that holds `path`: by device number in the mount table, whose lines are
 * "id parent major:minor root mountpoint options... - type source options". */
static void file_system(const char *path, char *ret, size_t n)
{
    struct stat st;
    lvr_buf text = LVR_BUF_INIT;
    snprintf(ret, n, "unknown");
    if (stat(path, &st) != 0 || lvr_read_file("/proc/self/mountinfo", 1 << 22, &text, NULL) != LVR_OK)
        return;
    for (char *save = NULL, *line = strtok_r(text.data, "\n", &save); line;
         line = strtok_r(NULL, "\n", &save)) {
        unsigned major_number = 0, minor_number = 0;
        const char *type = strstr(line, " - ");
        if (!type || sscanf(line, "%*d %*d %u:%u", &major_number, &minor_number) != 2 ||
            makedev(major_number, minor_number) != st.st_dev)
            continue;
        snprintf(ret, n, "%.*s", (int)strcspn(type + 3, " "), type + 3);
        break;
    }
    lvr_buf_free(&text);
}

/* What decides times and does not change from run to run: not the kernel's or the system's version. */
static void identify(lvr_trace_device *d)
{
    char text[1024];
    const int n = snprintf(
        text, sizeof text,
        "vendor=%s\nmodel=%s\ncpu=%s\nfilesystem=%s\nio=%s\ndirect=%d\nemulated=%s\nscale=%.17g\n", d->vendor,
        d->model, d->cpu_flags, d->filesystem, d->io_engine, d->direct, d->emulated, d->scale);
    lvr_sha256_mem_hex(text, n > 0 && (size_t)n < sizeof text ? (size_t)n : sizeof text - 1, d->sha256);
}

void lvr_trace_device_describe(const char *pack_path, const char *io_engine, bool direct,
                               const char *emulated, double scale, lvr_trace_device *ret)
{
    *ret = (lvr_trace_device){.direct = direct, .scale = scale};
    struct utsname u;
    if (uname(&u) == 0)
        snprintf(ret->kernel, sizeof ret->kernel, "%.40s %.60s %.20s", u.sysname, u.release, u.machine);
    file_value("/proc/cpuinfo", "vendor_id", ':', ret->vendor, sizeof ret->vendor);
    if (!ret->vendor[0])
        file_value("/proc/cpuinfo", "CPU implementer", ':', ret->vendor, sizeof ret->vendor);
    file_value("/proc/cpuinfo", "model name", ':', ret->model, sizeof ret->model);
    if (!ret->model[0])
        file_value("/proc/cpuinfo", "Hardware", ':', ret->model, sizeof ret->model);
    file_value("/etc/os-release", "PRETTY_NAME", '=', ret->os, sizeof ret->os);
    lvr_cpu_flags_text(ret->cpu_flags, sizeof ret->cpu_flags);
    file_system(pack_path, ret->filesystem, sizeof ret->filesystem);
    snprintf(ret->io_engine, sizeof ret->io_engine, "%s", io_engine);
    snprintf(ret->emulated, sizeof ret->emulated, "%s", emulated ? emulated : "");
    identify(ret);
}

void lvr_trace_meta_init(lvr_trace_kind kind, lvr_trace_meta *ret)
{
    *ret = (lvr_trace_meta){
        .kind = kind,
        .version_major = LVR_TRACE_VERSION_MAJOR,
        .version_minor = LVR_TRACE_VERSION_MINOR,
        .recorder_overhead_pct = NAN,
    };
    snprintf(ret->software, sizeof ret->software, "lever %s", LVR_VERSION);
    snprintf(ret->commit, sizeof ret->commit, "%s", LVR_COMMIT);
    snprintf(ret->compiler, sizeof ret->compiler, "%s", LVR_COMPILER);
    const time_t now = time(NULL);
    struct tm utc;
    if (gmtime_r(&now, &utc))
        strftime(ret->created_utc, sizeof ret->created_utc, "%Y-%m-%dT%H:%M:%SZ", &utc);
}
