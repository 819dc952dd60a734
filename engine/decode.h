/*
 * The engine as a host of the round machine: executes its actions with real flash reads and real compute,
 * records what happened. A session holds both models, caches, the flash reader, the accelerator and the
 * machine; requests run one after another. One thread.
 */
#ifndef LVR_ENGINE_DECODE_H
#define LVR_ENGINE_DECODE_H

#include "common/buf.h"
#include "costmodel/core/policy_file.h"
#include "costmodel/core/round.h"
#include "engine/accel/accel.h"
#include "engine/budget.h"
#include "engine/flash/calibrate.h"
#include "engine/flash/flash.h"
#include "engine/flash/io_report.h"
#include "engine/kernels/kernels.h"
#include "engine/sampler.h"
#include "engine/staging.h"
#include "engine/tokenizer/tokenizer.h"
#include "traces/trace.h"
#include <stdatomic.h>

typedef struct lvr_session lvr_session;

typedef struct lvr_session_config {
    const char *target_path, *draft_path; /* GGUF or pack; draft may be NULL for policies that use none */
    const lvr_policy *policy;             /* copied */
    lvr_io_mode io_mode;
    /* 0: as calibrated for this device (engine/flash/calibrate.h), else 4 MiB and 4; an emulated device and
     * buffered reads have the latter. */
    uint64_t slice_bytes; /* multiple of 4096, <= 16 MiB */
    uint32_t depth;
    /* 0: two, or one where nothing is read ahead (serial). More are never better within a budget: a slot
     * costs a resident layer, which saves at least as much reading in every round. */
    uint32_t ring_slots;
    bool has_budget; /* dram_budget_bytes, or with budget_auto what the machine or the container has left,
                        less LVR_BUDGET_PROGRAM_BYTES; else resident_fraction counts */
    bool budget_auto;
    uint64_t dram_budget_bytes;
    double resident_fraction;      /* 0..1 of layers */
    lvr_residency resident_layers; /* which of them */
    lvr_kv_type kv_type;           /* of both models' caches */
    const lvr_geometry *geometry; /* of a policy file: schedule and resident layers exactly as there; NULL: by
                                     the fields above */
    uint32_t n_ctx;               /* 0: the target's training context */
    uint32_t threads;
    lvr_cpu_level cpu_level;
    lvr_sampling sampling;
    uint32_t prefill_chunk; /* of a prompt pass, up to LVR_MAX_PREFILL_ROWS; 0: LVR_PREFILL_CHUNK_... */
    uint32_t max_rows;      /* of a verification pass */
    lvr_flash_engine flash_engine;
    bool buffered;
    lvr_verify verify; /* of streamed layers */
    bool emulate;
    lvr_flash_params emulated; /* after scaling */
    const char *emulated_name; /* preset name, for results */
    double emulated_scale;     /* 1: as the preset says */
    bool unchecked_emulation;  /* tests only: do not compare the preset with the device's own rate */
    bool ignore_eos;
    const char *accel;                       /* accelerator back end (engine/accel); NULL: none */
    uint64_t accel_launch_ns, accel_sync_ns; /* injected into its tickets */
    lvr_place place;       /* of the target's layers; with `geometry`, that one's counts. AUTO without an
                              accelerator is the CPU, NPU without one an error */
    lvr_place place_draft; /* of draft steps, as above; their heads stay on the CPU */
    lvr_head head;         /* with `geometry`, that one's counts, as for the draft's place */
    const lvr_flash_faults *flash_faults; /* tests only: makes reads fail on purpose; NULL: none */
    const char *memory_root; /* tests only: where /proc and /sys are looked for (common/memory.h); NULL: "" */
    /* Set by a signal handler or another thread: the session stops at the next event with
     * LVR_ERR_INTERRUPTED. */
    atomic_bool *cancel;
    /* Watches the opening ("hashing", "packing", "loading", in bytes: see engine/watch.h), and each request's
     * "prompt", in tokens; NULL: nobody. */
    void (*progress)(const char *stage, uint64_t done, uint64_t total, void *user);
    void *progress_user;
} lvr_session_config;

/* What the plan was made within. */
typedef struct lvr_session_budget {
    bool limited;            /* a DRAM budget was given, or `auto` */
    uint64_t budget_bytes;   /* if limited; UINT64_MAX: `auto` where nothing says what is left */
    uint64_t least_bytes;    /* the least feasible budget */
    lvr_memory_limit memory; /* before anything was loaded */
    bool calibrated;         /* ... for this device: */
    lvr_flash_calibration flash;
    bool followed; /* slice_bytes or depth, left open, are as calibrated */
} lvr_session_budget;

/* Sensible defaults for everything but the paths and the policy. */
void lvr_session_config_init(lvr_session_config *c);
lvr_status lvr_session_new(const lvr_session_config *config, lvr_session **ret, lvr_error *err);
/* As lvr_session_new, but nothing is loaded or read: for looking in and freeing only. */
lvr_status lvr_session_preview(const lvr_session_config *config, lvr_session **ret, lvr_error *err);
void lvr_session_free(lvr_session *s);
const lvr_tokenizer *lvr_session_tokenizer(const lvr_session *s);
const lvr_geometry *lvr_session_geometry(const lvr_session *s);
const lvr_budget_parts *lvr_session_parts(const lvr_session *s);
const lvr_session_budget *lvr_session_get_budget(const lvr_session *s);
uint32_t lvr_session_n_ctx(const lvr_session *s);
const lvr_accel_caps *lvr_session_accel(const lvr_session *s); /* NULL: none */
void lvr_session_models(const lvr_session *s, lvr_trace_model *ret_target, lvr_trace_model *ret_draft);
/* Whether the weights of one of the models are random. */
bool lvr_session_synthetic(const lvr_session *s);
void lvr_session_device(const lvr_session *s, lvr_trace_device *ret);
/* The run as resolved: what a trace embeds and what a policy file is compared with. */
void lvr_session_describe(const lvr_session *s, uint32_t n_predict, lvr_policy_file *ret);

/* Meta data of a timing trace of this session; free ret->config_yaml. */
lvr_status lvr_session_trace_meta(const lvr_session *s, uint32_t n_predict, lvr_trace_meta *ret,
                                  lvr_error *err);
/* Timing recording: from now on to this writer, which outlives the session. Before the first request. */
lvr_status lvr_session_set_trace(lvr_session *s, lvr_trace_writer *writer, lvr_error *err);

/* Figures of one request or summed over several. Keys of the JSON results: architecture section 3. */
typedef struct lvr_run_stats {
    uint64_t n_prefilled; /* of the prompt's tokens but the last: run; all of them unless interrupted */
    uint64_t n_prompt, n_tokens, rounds, drafted_rows, verified_rows, accepted, draft_steps;
    uint64_t pruned_rows; /* of verified_rows: dropped before the last layer */
    uint64_t bytes_read;  /* of the layers that this request's passes consumed */
    uint64_t prefill_ns, decode_ns, ttft_ns, wall_ns;
    uint64_t io_wait_ns; /* compute waited for flash */
    uint64_t io_busy_ns; /* at least one read in flight */
    uint64_t io_idle_ns; /* none, since the ring was full; serial mode, in which reads wait for compute: 0 */
    uint64_t compute_ns, draft_ns, head_ns, plan_ns, score_ns,
        commit_ns;                                 /* compute: embedding and layers of the target */
    uint64_t decode_io_busy_ns, decode_compute_ns; /* of the above, without the prompt's passes */
    uint64_t npu_ns;                               /* of compute_ns: on the accelerator */
    uint64_t npu_wait_ns;                          /* the host had nothing to do but wait for it */
    uint64_t npu_tickets;
    uint64_t late_reads;
    lvr_stop stop;
} lvr_run_stats;

/* Called per committed token, in order. False: it was the last one wanted. Then the request ends here with
 * LVR_STOP_HOST, without another pass, and tokens of the same round behind it are dropped from the outputs
 * and n_tokens (not from a recording). */
typedef bool (*lvr_token_fn)(void *user, int32_t token);

/* Generates up to n_predict tokens after the prompt. ret_tokens: malloc'ed (may be NULL to drop). After any
 * failure but a prompt that does not fit, the session can only be freed. LVR_ERR_INTERRUPTED is the one
 * failure that sets the outputs: what was done until then, with LVR_STOP_INTERRUPTED. */
lvr_status lvr_session_generate(lvr_session *s, uint64_t request, uint32_t domain, const int32_t *prompt,
                                uint32_t n_prompt, uint32_t n_predict, lvr_token_fn on_token, void *user,
                                int32_t **ret_tokens, uint32_t *ret_n, lvr_run_stats *ret_stats,
                                lvr_error *err);
void lvr_run_stats_add(lvr_run_stats *sum, const lvr_run_stats *one);
/* Bytes read ahead that no pass has consumed so far. */
uint64_t lvr_session_run_ahead_bytes(const lvr_session *s);
/* What the reads of the session so far really were; false: no layer is streamed. */
bool lvr_session_io_report(const lvr_session *s, lvr_io_report *ret);

#endif
