/*
 * The resolved configuration of a run as one YAML document: what tune writes and run consumes unchanged
 * (policy.yaml), and what every trace embeds under /config. Self-contained: policy and parameters, schedule,
 * cost table, calibration, exit predictor, conditions of the run, and the identities it is valid for.
 */
#ifndef LVR_CORE_POLICY_FILE_H
#define LVR_CORE_POLICY_FILE_H

#include "common/hash.h"
#include "costmodel/core/policy.h"

/* Conditions under which times were measured or predicted. */
typedef struct lvr_run_conditions {
    uint32_t threads;
    uint32_t depth; /* reads in flight on the real device */
    char cpu_level[16];
    char kv_type[8];                 /* of both KV caches: "f16", "q8_0"; "": f16 */
    char emulated[64];               /* flash preset name or "" */
    double emulate_scale;            /* 1 unless the preset was scaled */
    lvr_flash_params emulated_flash; /* after scaling; only if emulated[0] */
    uint32_t n_ctx, prefill_chunk, max_rows;
    double temperature, top_p; /* sampling; temperature 0: greedy */
    uint32_t top_k;
    uint64_t seed;
    bool ignore_eos;
    uint32_t n_predict;
    char accel[16];                          /* accelerator back end, "": none */
    uint64_t accel_launch_ns, accel_sync_ns; /* delays injected into each of its tickets */
} lvr_run_conditions;

lvr_status lvr_run_conditions_from_yaml(const lvr_yaml_node *map, lvr_run_conditions *ret, lvr_error *err);
void lvr_run_conditions_to_yaml(const lvr_run_conditions *c, lvr_yaml_out *y);

typedef struct lvr_policy_file {
    lvr_policy policy;
    lvr_geometry geometry;
    lvr_run_conditions conditions;
    char target_sha256[LVR_SHA256_HEX_BYTES],
        draft_sha256[LVR_SHA256_HEX_BYTES];   /* of the GGUF files; "" : none */
    char device_sha256[LVR_SHA256_HEX_BYTES]; /* lvr_trace_device.sha256; "" : any */
    double predicted_tokens_per_s;            /* by tune, on held-out prompts; 0: not predicted */
    char objective[64];                       /* what predicted it, "" : not tuned */
} lvr_policy_file;

/* Whether the argument of --policy names a file: a known policy's name never does, whatever lies in the
 * working directory. */
bool lvr_policy_is_file(const char *name_or_file);
lvr_status lvr_policy_file_load(const char *path, lvr_policy_file *ret, lvr_error *err);
/* From a document in memory (a trace's /config); `name` stands for the file in messages. */
lvr_status lvr_policy_file_parse(const char *name, const char *text, size_t n, lvr_policy_file *ret,
                                 lvr_error *err);
lvr_status lvr_policy_file_format(const lvr_policy_file *pf, lvr_buf *out, lvr_error *err);
lvr_status lvr_policy_file_save(const char *path, const lvr_policy_file *pf, lvr_error *err);

#endif
