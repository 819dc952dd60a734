/* The field tables of all streams: the one place that names fields, units and enumerations of the trace
 * format. */
#include "traces/schema.h"

#include "costmodel/core/cost.h"

/* Sizes are literal on purpose: a struct that grows or gains padding breaks the build here, not a reader
 * later. */
_Static_assert(sizeof(lvr_rec_request) == 56, "implicit padding or a changed format");
_Static_assert(sizeof(lvr_rec_token) == 24, "implicit padding or a changed format");
_Static_assert(sizeof(lvr_rec_round) == 88, "implicit padding or a changed format");
_Static_assert(sizeof(lvr_rec_round_node) == 40, "implicit padding or a changed format");
_Static_assert(sizeof(lvr_rec_flash) == 64, "implicit padding or a changed format");
_Static_assert(sizeof(lvr_rec_kernel) == 64, "implicit padding or a changed format");
_Static_assert(sizeof(lvr_rec_tree) == 56, "implicit padding or a changed format");
_Static_assert(sizeof(lvr_rec_draft_topk) == 24, "implicit padding or a changed format");
_Static_assert(sizeof(lvr_rec_bench) == 64, "implicit padding or a changed format");
_Static_assert(sizeof(lvr_rec_memory) == 40, "implicit padding or a changed format");
_Static_assert(sizeof(lvr_rec_exit) == 40, "implicit padding or a changed format");
_Static_assert(sizeof(lvr_rec_round) <= LVR_RECORD_MAX_BYTES, "the largest record must fit a ring slot");

static const char *pick(const char *const *names, uint32_t n, uint32_t value)
{
    return value < n ? names[value] : NULL;
}

static const char *op_name(uint32_t value)
{
    return value < LVR_OP_COUNT ? lvr_op_name((lvr_op)value) : NULL;
}

static const char *unit_name(uint32_t value)
{
    static const char *const names[] = {[LVR_UNIT_CPU] = "cpu", [LVR_UNIT_NPU] = "npu"};
    return pick(names, 2, value);
}

static const char *model_name(uint32_t value)
{
    static const char *const names[] = {"target", "draft"};
    return pick(names, 2, value);
}

static const char *cached_name(uint32_t value)
{
    static const char *const names[] = {"direct", "buffered"};
    return pick(names, 2, value);
}

static const char *bench_kind_name(uint32_t value)
{
    static const char *const names[] = {"kernel", "flash"};
    return pick(names, 2, value);
}

#define TYPE_OF(rec, member)                                                                                 \
    _Generic(((rec *)0)->member, uint32_t                                                                    \
             : LVR_FIELD_U32, int32_t                                                                        \
             : LVR_FIELD_I32, uint64_t                                                                       \
             : LVR_FIELD_U64, float                                                                          \
             : LVR_FIELD_F32, double                                                                         \
             : LVR_FIELD_F64)
#define ENUM(rec, member, name, fn, text)                                                                    \
    {                                                                                                        \
        name, TYPE_OF(rec, member), (uint32_t)offsetof(rec, member), "enum", text, fn                        \
    }
#define FIELD(rec, member, name, unit, text)                                                                 \
    {                                                                                                        \
        name, TYPE_OF(rec, member), (uint32_t)offsetof(rec, member), unit, text, NULL                        \
    }

/* clang-format off: one field a line reads as the table it is */
static const lvr_field request_fields[] = {
    FIELD(lvr_rec_request, id, "id", "1", "number of the request, unique in the trace"),
    FIELD(lvr_rec_request, domain, "domain", "1", "index into the root attribute `domains`"),
    FIELD(lvr_rec_request, prompt_hash, "prompt_hash", "1",
          "first 8 bytes of the SHA-256 of the prompt's token ids (int32 little endian)"),
    FIELD(lvr_rec_request, n_prompt, "n_prompt", "tokens", "prompt tokens"),
    FIELD(lvr_rec_request, n_output, "n_output", "tokens", "generated tokens"),
    FIELD(lvr_rec_request, t_arrival_ns, "t_arrival", "ns", "the request was accepted"),
    FIELD(lvr_rec_request, t_first_token_ns, "t_first_token", "ns", "its first output token was committed"),
    FIELD(lvr_rec_request, t_done_ns, "t_done", "ns", "its last output token was committed"),
};

static const lvr_field token_fields[] = {
    FIELD(lvr_rec_token, request, "request", "1", "requests.id"),
    FIELD(lvr_rec_token, pos, "pos", "tokens", "position in prompt + output, from 0"),
    FIELD(lvr_rec_token, token, "token", "1", "token id"),
    FIELD(lvr_rec_token, is_output, "is_output", "1", "0: prompt, 1: generated"),
};

static const lvr_field round_fields[] = {
    FIELD(lvr_rec_round, request, "request", "1", "requests.id"),
    FIELD(lvr_rec_round, round, "round", "1", "number of the round, ascending over the whole recording"),
    FIELD(lvr_rec_round, pos, "pos", "tokens", "position of the root, or of a prompt chunk's first row"),
    FIELD(lvr_rec_round, prefill, "prefill", "1", "1: a prompt pass"),
    FIELD(lvr_rec_round, n_nodes, "n_nodes", "rows", "rows of the pass"),
    FIELD(lvr_rec_round, depth, "depth", "1", "depth of the verified tree"),
    FIELD(lvr_rec_round, n_kept, "n_kept", "rows", "rows left after pruning (n_nodes without pruning)"),
    FIELD(lvr_rec_round, n_accepted, "n_accepted", "tokens",
          "accepted draft nodes, the bonus token not counted"),
    FIELD(lvr_rec_round, n_drafted, "n_drafted", "rows", "nodes that the draft expanded"),
    FIELD(lvr_rec_round, n_draft_steps, "n_draft_steps", "1", "draft steps"),
    FIELD(lvr_rec_round, t_draft0_ns, "t_draft0", "ns", "drafting began"),
    FIELD(lvr_rec_round, t_draft1_ns, "t_draft1", "ns", "drafting ended"),
    FIELD(lvr_rec_round, t_verify0_ns, "t_verify0", "ns", "the target pass began"),
    FIELD(lvr_rec_round, t_verify1_ns, "t_verify1", "ns", "the target pass ended"),
    FIELD(lvr_rec_round, t_commit_ns, "t_commit", "ns", "the accepted tokens were committed"),
};

static const lvr_field round_node_fields[] = {
    FIELD(lvr_rec_round_node, request, "request", "1", "requests.id"),
    FIELD(lvr_rec_round_node, round, "round", "1", "rounds.round"),
    FIELD(lvr_rec_round_node, node, "node", "1", "row of the pass, from 0 (the root)"),
    FIELD(lvr_rec_round_node, parent, "parent", "1", "row of the parent, -1 for the root"),
    FIELD(lvr_rec_round_node, token, "token", "1", "token id"),
    FIELD(lvr_rec_round_node, p_draft, "p_draft", "1",
          "the draft's probability of the token after its parent"),
    FIELD(lvr_rec_round_node, last_layer, "last_layer", "1",
          "the last target layer that this row ran through"),
    FIELD(lvr_rec_round_node, accepted, "accepted", "1", "1: the root, or accepted"),
};

static const lvr_field flash_fields[] = {
    FIELD(lvr_rec_flash, round, "round", "1",
          "the pass that consumed the slice; 2^64-1: nothing consumed it"),
    FIELD(lvr_rec_flash, layer, "layer", "1", "target layer"),
    FIELD(lvr_rec_flash, slice, "slice", "1", "slice of the layer"),
    FIELD(lvr_rec_flash, offset, "offset", "bytes", "in the pack file"),
    FIELD(lvr_rec_flash, bytes, "bytes", "bytes", "length of the read"),
    FIELD(lvr_rec_flash, queue_depth, "queue_depth", "1",
          "requests in flight when it started, itself included"),
    FIELD(lvr_rec_flash, t_submit_ns, "t_submit", "ns", "handed to the I/O engine"),
    FIELD(lvr_rec_flash, t_start_ns, "t_start", "ns", "issued to the operating system"),
    FIELD(lvr_rec_flash, t_end_ns, "t_end", "ns", "complete in memory"),
    ENUM(lvr_rec_flash, cached, "cached", cached_name,
         "direct I/O, or buffered (the page cache may have served it)"),
};

static const lvr_field kernel_fields[] = {
    FIELD(lvr_rec_kernel, round, "round", "1", "rounds.round"),
    ENUM(lvr_rec_kernel, model, "model", model_name, "which model"),
    FIELD(lvr_rec_kernel, layer, "layer", "1", "layer; 2^32-1 where it does not apply"),
    ENUM(lvr_rec_kernel, op, "op", op_name, "operator"),
    ENUM(lvr_rec_kernel, unit, "unit", unit_name, "where it ran"),
    FIELD(lvr_rec_kernel, rows, "rows", "rows", "rows of the batch"),
    FIELD(lvr_rec_kernel, bucket, "bucket", "rows", "row bucket of the compiled graph (rows on a CPU)"),
    FIELD(lvr_rec_kernel, context, "context", "tokens", "cached positions before the rows"),
    FIELD(lvr_rec_kernel, t_submit_ns, "t_submit", "ns", "handed to the unit"),
    FIELD(lvr_rec_kernel, t_start_ns, "t_start", "ns", "began"),
    FIELD(lvr_rec_kernel, t_end_ns, "t_end", "ns", "ended"),
};

static const lvr_field tree_fields[] = {
    FIELD(lvr_rec_tree, request, "request", "1", "requests.id"),
    FIELD(lvr_rec_tree, pos, "pos", "tokens", "position of the root"),
    FIELD(lvr_rec_tree, node, "node", "1", "number in this position's tree, 0 is the root"),
    FIELD(lvr_rec_tree, parent, "parent", "1", "parent's node, -1 for the root"),
    FIELD(lvr_rec_tree, depth, "depth", "1", "0 for the root"),
    FIELD(lvr_rec_tree, rank, "rank", "1", "rank among its siblings by the draft, from 0"),
    FIELD(lvr_rec_tree, token, "token", "1", "token id"),
    FIELD(lvr_rec_tree, p_draft, "p_draft", "1", "the draft's probability of the token after its parent"),
    FIELD(lvr_rec_tree, target_token, "target_token", "1",
          "the target's token after this node; -1: not run through the target"),
    FIELD(lvr_rec_tree, p_target, "p_target", "1",
          "its probability under the sampling settings, NaN if not run"),
    FIELD(lvr_rec_tree, on_path, "on_path", "1", "1: the root, or the target's own continuation"),
    FIELD(lvr_rec_tree, expanded, "expanded", "1", "1: all children down to the caps are recorded"),
};

static const lvr_field draft_topk_fields[] = {
    FIELD(lvr_rec_draft_topk, request, "request", "1", "requests.id"),
    FIELD(lvr_rec_draft_topk, pos, "pos", "tokens", "position of the last token of the true prefix"),
    FIELD(lvr_rec_draft_topk, k, "k", "1", "rank, from 0"),
    FIELD(lvr_rec_draft_topk, token, "token", "1", "token id"),
    FIELD(lvr_rec_draft_topk, p, "p", "1", "the draft's probability"),
};

static const lvr_field bench_fields[] = {
    ENUM(lvr_rec_bench, kind, "kind", bench_kind_name, "what was measured"),
    ENUM(lvr_rec_bench, op, "op", op_name, "operator (kernel rows)"),
    ENUM(lvr_rec_bench, unit, "unit", unit_name, "where it ran (kernel rows)"),
    FIELD(lvr_rec_bench, rows, "rows", "rows", "rows of the batch (kernel rows)"),
    FIELD(lvr_rec_bench, bytes, "bytes", "bytes", "size of a read (flash rows)"),
    FIELD(lvr_rec_bench, depth, "depth", "1", "queue depth (flash rows)"),
    FIELD(lvr_rec_bench, n, "n", "1", "measurements"),
    FIELD(lvr_rec_bench, mean_ns, "mean", "ns", "mean duration"),
    FIELD(lvr_rec_bench, p50_ns, "p50", "ns", "median duration"),
    FIELD(lvr_rec_bench, p90_ns, "p90", "ns", "90 % quantile"),
    FIELD(lvr_rec_bench, p99_ns, "p99", "ns", "99 % quantile"),
};

static const lvr_field memory_fields[] = {
    FIELD(lvr_rec_memory, t_ns, "time", "ns", "time of the sample"),
    FIELD(lvr_rec_memory, rss_bytes, "rss", "bytes", "resident memory of the recording process"),
    FIELD(lvr_rec_memory, available_bytes, "available", "bytes", "MemAvailable of the machine"),
    FIELD(lvr_rec_memory, swap_bytes, "swap", "bytes", "swap in use on the machine"),
    FIELD(lvr_rec_memory, majflt, "majflt", "1", "major page faults of the process since its start"),
};

static const lvr_field exit_fields[] = {
    FIELD(lvr_rec_exit, request, "request", "1", "requests.id"),
    FIELD(lvr_rec_exit, pos, "pos", "tokens", "position of the root"),
    FIELD(lvr_rec_exit, node, "node", "1", "number in this position's tree; the root has no row"),
    FIELD(lvr_rec_exit, layer, "layer", "1", "the target layer after which this was seen"),
    FIELD(lvr_rec_exit, score, "score", "1",
          "early head: product of the parent's row after the layer, normalised as before the head, with the "
          "head's row of the node's token"),
    FIELD(lvr_rec_exit, slice_lse, "slice_lse", "1",
          "log sum exp of its products with 256 of the head's rows, evenly spread over the vocabulary"),
    FIELD(lvr_rec_exit, slice_max, "slice_max", "1", "the largest of them"),
    FIELD(lvr_rec_exit, slice_entropy, "slice_entropy", "nats", "entropy of their softmax"),
};

#define STREAM(path, rec, fields, text)                                                                      \
    {                                                                                                        \
        path, text, sizeof(rec), fields, sizeof(fields) / sizeof(fields[0])                                  \
    }
static const lvr_stream_desc streams[LVR_STREAM_COUNT] = {
    [LVR_STREAM_REQUESTS] =
        STREAM("/requests", lvr_rec_request, request_fields, "one row a prompt and its output"),
    [LVR_STREAM_TOKENS] = STREAM("/tokens", lvr_rec_token, token_fields, "token ids of prompts and outputs"),
    [LVR_STREAM_ROUNDS] =
        STREAM("/rounds", lvr_rec_round, round_fields, "one row a round: draft, verify, commit"),
    [LVR_STREAM_ROUND_NODES] =
        STREAM("/round_nodes", lvr_rec_round_node, round_node_fields, "the trees that were actually run"),
    [LVR_STREAM_FLASH] = STREAM("/flash", lvr_rec_flash, flash_fields, "one row a read of target weights"),
    [LVR_STREAM_KERNELS] = STREAM("/kernels", lvr_rec_kernel, kernel_fields, "one row an operator run"),
    [LVR_STREAM_TREES] = STREAM("/trees", lvr_rec_tree, tree_fields,
                                "oracle: the union of the policies' trees at every output position"),
    [LVR_STREAM_DRAFT_TOPK] = STREAM("/draft_topk", lvr_rec_draft_topk, draft_topk_fields,
                                     "oracle: the draft's most probable tokens on the true prefix"),
    [LVR_STREAM_BENCH] =
        STREAM("/bench", lvr_rec_bench, bench_fields, "aggregates of micro-benchmarks and imports"),
    [LVR_STREAM_MEMORY] = STREAM("/device/memory", lvr_rec_memory, memory_fields,
                                 "memory, sampled once a second by the recorder"),
    [LVR_STREAM_EXIT] = STREAM("/exit", lvr_rec_exit, exit_fields,
                               "oracle: what the exit predictor may see of the nodes between target layers"),
};
/* clang-format on */

_Static_assert(sizeof(round_fields) / sizeof(round_fields[0]) <= LVR_RECORD_MAX_FIELDS, "raise the limit");

const lvr_stream_desc *lvr_stream_describe(lvr_stream stream)
{
    return &streams[stream];
}
