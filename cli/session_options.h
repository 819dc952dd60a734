/* Options that run and record share, and how they, a policy file and a cost model make one session. */
#ifndef LVR_CLI_SESSION_OPTIONS_H
#define LVR_CLI_SESSION_OPTIONS_H

#include "cli/prompts.h"
#include "common/param.h"
#include "costmodel/core/policy_file.h"
#include "engine/decode.h"
#include <math.h>

typedef struct lvr_session_options {
    const char *target, *draft, *policy, *cost, *emulate_flash;
    lvr_strlist set;
    double emulate_scale, resident, temperature, top_p;
    uint64_t dram_budget, seed, slice;
    uint32_t context, threads, tokens, top_k, ring, depth, prefill_chunk;
    const char *prompt, *file, *prompts, *split, *domain, *system;
    int io, flash_engine, verify, cpu_level, accel, place, place_draft, head, resident_layers, kv_type;
    double accel_launch_us, accel_sync_us;
    bool buffered, ignore_eos, what_if, chat, escape, quiet;
} lvr_session_options;

extern const char *const lvr_choices_io[], *const lvr_choices_flash_engine[], *const lvr_choices_cpu_level[];
extern const char *const lvr_choices_place[], *const lvr_choices_head[], *const lvr_choices_resident_layers[],
                                                                             *const lvr_choices_kv_type[];
extern const char *const lvr_choices_verify[];
lvr_place lvr_place_of_choice(int choice);

/* A row for the option table of any command that decides which layers stay. */
#define LVR_RESIDENT_LAYERS_ROW(at, text)                                                                    \
    {                                                                                                        \
        .name = "resident-layers", .type = LVR_PARAM_ENUM, .offset = (at), .max = LVR_RESIDENT_LAST,         \
        .def = LVR_RESIDENT_SPREAD, .choices = lvr_choices_resident_layers, .help = (text)                   \
    }

/* --place-draft and --head of commands that replay: as the policy file says unless given. */
#define LVR_REPLAY_PLACE_DRAFT_ROW(at)                                                                       \
    {                                                                                                        \
        .name = "place-draft", .type = LVR_PARAM_ENUM, .offset = (at), .max = 2, .def = 1,                   \
        .choices = lvr_choices_place,                                                                        \
        .help = "where draft steps run; default: as the policy file says, else the CPU"                      \
    }
#define LVR_REPLAY_HEAD_ROW(at)                                                                              \
    {                                                                                                        \
        .name = "head", .type = LVR_PARAM_ENUM, .offset = (at), .max = LVR_HEAD_EAGER, .def = LVR_HEAD_LAZY, \
        .choices = lvr_choices_head,                                                                         \
        .help = "output head: row by row along the accepted path, or for all verified rows at once; "        \
                "default: as the policy file says"                                                           \
    }

/* Rows for the option table of a command whose options begin with a lvr_session_options: what a session's
 * plan depends on, */
#define LVR_PLAN_OPTION_ROWS                                                                                 \
    {.name = "target",                                                                                       \
     .short_name = 'm',                                                                                      \
     .type = LVR_PARAM_STR,                                                                                  \
     .offset = offsetof(lvr_session_options, target),                                                        \
     .def = NAN,                                                                                             \
     .help = "target model: a GGUF or a pack"},                                                              \
        {.name = "draft",                                                                                    \
         .alias = "md",                                                                                      \
         .type = LVR_PARAM_STR,                                                                              \
         .offset = offsetof(lvr_session_options, draft),                                                     \
         .def = NAN,                                                                                         \
         .help = "draft model: a GGUF or a pack; stays in DRAM"},                                            \
        {.name = "policy",                                                                                   \
         .type = LVR_PARAM_STR,                                                                              \
         .offset = offsetof(lvr_session_options, policy),                                                    \
         .def = NAN,                                                                                         \
         .def_str = "ar",                                                                                    \
         .help = "name of a policy, or a policy file (written by lever tune), which is run unchanged"},      \
        {.name = "dram-budget",                                                                              \
         .type = LVR_PARAM_SIZE,                                                                             \
         .offset = offsetof(lvr_session_options, dram_budget),                                               \
         .min = 1,                                                                                           \
         .max = 1e18,                                                                                        \
         .def = NAN,                                                                                         \
         .zero_word = "auto",                                                                                \
         .unit = "bytes",                                                                                    \
         .help = "DRAM for everything; as many layers stay resident as fit. auto: what the machine or the "  \
                 "container has left, less 64 MiB for the program itself"},                                  \
        {.name = "resident",                                                                                 \
         .type = LVR_PARAM_DOUBLE,                                                                           \
         .offset = offsetof(lvr_session_options, resident),                                                  \
         .min = 0,                                                                                           \
         .max = 1,                                                                                           \
         .def = 1,                                                                                           \
         .unit = "1",                                                                                        \
         .help = "fraction of the target's layers that stays in DRAM"},                                      \
        LVR_RESIDENT_LAYERS_ROW(offsetof(lvr_session_options, resident_layers),                              \
                                "which layers stay when not all do; spread: evenly over the depth"),         \
        {.name = "kv-type",                                                                                  \
         .type = LVR_PARAM_ENUM,                                                                             \
         .offset = offsetof(lvr_session_options, kv_type),                                                   \
         .max = LVR_KV_TYPES - 1,                                                                            \
         .def = LVR_KV_F16,                                                                                  \
         .choices = lvr_choices_kv_type,                                                                     \
         .help = "type of the KV caches; q8_0 takes 0.53 of the memory and may change the text a little"},   \
        {.name = "context",                                                                                  \
         .short_name = 'c',                                                                                  \
         .type = LVR_PARAM_U32,                                                                              \
         .offset = offsetof(lvr_session_options, context),                                                   \
         .min = 0,                                                                                           \
         .max = 1 << 24,                                                                                     \
         .def = 0,                                                                                           \
         .unit = "tokens",                                                                                   \
         .help = "positions of the KV cache; 0: as trained"},                                                \
        {.name = "threads",                                                                                  \
         .short_name = 't',                                                                                  \
         .type = LVR_PARAM_U32,                                                                              \
         .offset = offsetof(lvr_session_options, threads),                                                   \
         .min = 0,                                                                                           \
         .max = 64,                                                                                          \
         .def = 0,                                                                                           \
         .help = "threads that compute; 0: one per CPU"},                                                    \
        {.name = "io",                                                                                       \
         .type = LVR_PARAM_ENUM,                                                                             \
         .offset = offsetof(lvr_session_options, io),                                                        \
         .min = 0,                                                                                           \
         .max = 1,                                                                                           \
         .def = 1,                                                                                           \
         .choices = lvr_choices_io,                                                                          \
         .help = "read then compute, or read ahead"},                                                        \
        {.name = "ring",                                                                                     \
         .type = LVR_PARAM_U32,                                                                              \
         .offset = offsetof(lvr_session_options, ring),                                                      \
         .min = 1,                                                                                           \
         .max = LVR_MAX_RING_SLOTS,                                                                          \
         .def = 0,                                                                                           \
         .zero_word = "auto",                                                                                \
         .unit = "layers",                                                                                   \
         .help = "layers staged at once. auto: 2, 1 with --io serial; within a budget more would cost "      \
                 "resident layers, which save more"},                                                        \
        {.name = "slice",                                                                                    \
         .type = LVR_PARAM_SIZE,                                                                             \
         .offset = offsetof(lvr_session_options, slice),                                                     \
         .min = 4096,                                                                                        \
         .max = LVR_MAX_SLICE_BYTES,                                                                         \
         .def = 0,                                                                                           \
         .zero_word = "auto",                                                                                \
         .unit = "bytes",                                                                                    \
         .help = "size of a read, a multiple of 4096. auto: as lever doctor --flash has measured the "       \
                 "device, else 4 MiB"},                                                                      \
        {.name = "depth",                                                                                    \
         .type = LVR_PARAM_U32,                                                                              \
         .offset = offsetof(lvr_session_options, depth),                                                     \
         .min = 1,                                                                                           \
         .max = LVR_FLASH_MAX_DEPTH,                                                                         \
         .def = 0,                                                                                           \
         .zero_word = "auto",                                                                                \
         .help = "reads in flight. auto: as lever doctor --flash has measured the device, else 4"},          \
        {.name = "prefill-chunk",                                                                            \
         .type = LVR_PARAM_U32,                                                                              \
         .offset = offsetof(lvr_session_options, prefill_chunk),                                             \
         .min = 0,                                                                                           \
         .max = LVR_MAX_PREFILL_ROWS,                                                                        \
         .def = 0,                                                                                           \
         .unit = "tokens",                                                                                   \
         .help = "rows of a prompt pass; 0: 512 if layers are streamed, else 128"},                          \
        {.name = "emulate-flash",                                                                            \
         .type = LVR_PARAM_STR,                                                                              \
         .offset = offsetof(lvr_session_options, emulate_flash),                                             \
         .def = NAN,                                                                                         \
         .help = "preset or file of a slower flash device to emulate"},                                      \
        {.name = "emulate-scale",                                                                            \
         .type = LVR_PARAM_DOUBLE,                                                                           \
         .offset = offsetof(lvr_session_options, emulate_scale),                                             \
         .min = 1e-6,                                                                                        \
         .max = 1,                                                                                           \
         .def = 1,                                                                                           \
         .unit = "1",                                                                                        \
         .help = "slow the emulated device down, all its rates alike"},                                      \
    {                                                                                                        \
        .name = "what-if", .type = LVR_PARAM_BOOL, .offset = offsetof(lvr_session_options, what_if),         \
        .max = 1,                                                                                            \
        .help = "run a policy file or cost model although it was made for other conditions; marked in the "  \
                "result"                                                                                     \
    }
/* and everything. */
#define LVR_SESSION_OPTION_ROWS                                                                              \
    LVR_PLAN_OPTION_ROWS,                                                                                    \
        {.name = "set",                                                                                      \
         .type = LVR_PARAM_STR,                                                                              \
         .offset = offsetof(lvr_session_options, set),                                                       \
         .def = NAN,                                                                                         \
         .multi = true,                                                                                      \
         .help = "key=value: a parameter of the policy; may repeat"},                                        \
        {.name = "cost",                                                                                     \
         .type = LVR_PARAM_STR,                                                                              \
         .offset = offsetof(lvr_session_options, cost),                                                      \
         .def = NAN,                                                                                         \
         .help = "cost model (written by lever fit) that the policy prices its trees with"},                 \
        {.name = "seed",                                                                                     \
         .type = LVR_PARAM_U64,                                                                              \
         .offset = offsetof(lvr_session_options, seed),                                                      \
         .min = 0,                                                                                           \
         .max = 9e15,                                                                                        \
         .def = 0,                                                                                           \
         .help = "seed of sampling"},                                                                        \
        {.name = "prompt",                                                                                   \
         .short_name = 'p',                                                                                  \
         .type = LVR_PARAM_STR,                                                                              \
         .offset = offsetof(lvr_session_options, prompt),                                                    \
         .def = NAN,                                                                                         \
         .help = "the prompt"},                                                                              \
        {.name = "file",                                                                                     \
         .short_name = 'f',                                                                                  \
         .type = LVR_PARAM_STR,                                                                              \
         .offset = offsetof(lvr_session_options, file),                                                      \
         .def = NAN,                                                                                         \
         .help = "file whose text is the prompt; -: standard input, which is also the default"},             \
        {.name = "prompts",                                                                                  \
         .type = LVR_PARAM_STR,                                                                              \
         .offset = offsetof(lvr_session_options, prompts),                                                   \
         .def = NAN,                                                                                         \
         .help = "YAML or JSONL file of prompts {id, domain, split, text}; -: standard input"},              \
        {.name = "escape",                                                                                   \
         .short_name = 'e',                                                                                  \
         .type = LVR_PARAM_BOOL,                                                                             \
         .offset = offsetof(lvr_session_options, escape),                                                    \
         .max = 1,                                                                                           \
         .help = "C escapes in --prompt and --stop: \\n, \\r, \\t, \\\\, \\xHH"},                            \
        {.name = "quiet",                                                                                    \
         .short_name = 'q',                                                                                  \
         .type = LVR_PARAM_BOOL,                                                                             \
         .offset = offsetof(lvr_session_options, quiet),                                                     \
         .max = 1,                                                                                           \
         .help = "no notices, figures and progress on standard error, only warnings and errors"},            \
        {.name = "split",                                                                                    \
         .type = LVR_PARAM_STR,                                                                              \
         .offset = offsetof(lvr_session_options, split),                                                     \
         .def = NAN,                                                                                         \
         .help = "only prompts of this split: tune or held-out"},                                            \
        {.name = "domain",                                                                                   \
         .type = LVR_PARAM_STR,                                                                              \
         .offset = offsetof(lvr_session_options, domain),                                                    \
         .def = NAN,                                                                                         \
         .help = "only prompts of this domain"},                                                             \
        {.name = "tokens",                                                                                   \
         .short_name = 'n',                                                                                  \
         .type = LVR_PARAM_U32,                                                                              \
         .offset = offsetof(lvr_session_options, tokens),                                                    \
         .min = 1,                                                                                           \
         .max = 1 << 24,                                                                                     \
         .def = 128,                                                                                         \
         .unit = "tokens",                                                                                   \
         .help = "tokens to generate per prompt"},                                                           \
        {.name = "temperature",                                                                              \
         .type = LVR_PARAM_DOUBLE,                                                                           \
         .offset = offsetof(lvr_session_options, temperature),                                               \
         .min = 0,                                                                                           \
         .max = 100,                                                                                         \
         .def = 0,                                                                                           \
         .unit = "1",                                                                                        \
         .help = "0: greedy"},                                                                               \
        {.name = "top-k",                                                                                    \
         .type = LVR_PARAM_U32,                                                                              \
         .offset = offsetof(lvr_session_options, top_k),                                                     \
         .min = 0,                                                                                           \
         .max = 1 << 24,                                                                                     \
         .def = 0,                                                                                           \
         .help = "sample from the k likeliest tokens; 0: all"},                                              \
        {.name = "top-p",                                                                                    \
         .type = LVR_PARAM_DOUBLE,                                                                           \
         .offset = offsetof(lvr_session_options, top_p),                                                     \
         .min = 0,                                                                                           \
         .max = 1,                                                                                           \
         .def = 1,                                                                                           \
         .unit = "1",                                                                                        \
         .help = "sample from the likeliest tokens of this mass"},                                           \
        {.name = "flash-engine",                                                                             \
         .type = LVR_PARAM_ENUM,                                                                             \
         .offset = offsetof(lvr_session_options, flash_engine),                                              \
         .min = 0,                                                                                           \
         .max = 2,                                                                                           \
         .def = 0,                                                                                           \
         .choices = lvr_choices_flash_engine,                                                                \
         .help = "how reads are issued"},                                                                    \
        {.name = "buffered",                                                                                 \
         .type = LVR_PARAM_BOOL,                                                                             \
         .offset = offsetof(lvr_session_options, buffered),                                                  \
         .max = 1,                                                                                           \
         .help = "read through the page cache, which may hide the flash"},                                   \
        {.name = "verify",                                                                                   \
         .type = LVR_PARAM_ENUM,                                                                             \
         .offset = offsetof(lvr_session_options, verify),                                                    \
         .max = LVR_VERIFY_FIRST,                                                                            \
         .def = LVR_VERIFY_ALWAYS,                                                                           \
         .choices = lvr_choices_verify,                                                                      \
         .help = "compare a streamed layer with its checksum each time it is read, or only the first time"}, \
        {.name = "cpu-level",                                                                                \
         .type = LVR_PARAM_ENUM,                                                                             \
         .offset = offsetof(lvr_session_options, cpu_level),                                                 \
         .min = 0,                                                                                           \
         .max = LVR_CPU_LEVELS,                                                                              \
         .def = 0,                                                                                           \
         .choices = lvr_choices_cpu_level,                                                                   \
         .help = "SIMD level; the results are the same at each"},                                            \
        {.name = "accel",                                                                                    \
         .type = LVR_PARAM_ENUM,                                                                             \
         .offset = offsetof(lvr_session_options, accel),                                                     \
         .min = 0,                                                                                           \
         .max = LVR_ACCEL_BACK_END_COUNT,                                                                    \
         .def = 0,                                                                                           \
         .choices = lvr_accel_choices,                                                                       \
         .help = "unit besides the CPU that may run the target's layers"},                                   \
        {.name = "place",                                                                                    \
         .type = LVR_PARAM_ENUM,                                                                             \
         .offset = offsetof(lvr_session_options, place),                                                     \
         .min = 0,                                                                                           \
         .max = 2,                                                                                           \
         .def = 0,                                                                                           \
         .choices = lvr_choices_place,                                                                       \
         .help = "where they run; auto: by the cost table's prices, per row count"},                         \
        {.name = "place-draft",                                                                              \
         .type = LVR_PARAM_ENUM,                                                                             \
         .offset = offsetof(lvr_session_options, place_draft),                                               \
         .max = 2,                                                                                           \
         .def = 1,                                                                                           \
         .choices = lvr_choices_place,                                                                       \
         .help = "where the draft's layers run in draft steps; auto: by the cost table's prices"},           \
        {.name = "head",                                                                                     \
         .type = LVR_PARAM_ENUM,                                                                             \
         .offset = offsetof(lvr_session_options, head),                                                      \
         .max = LVR_HEAD_EAGER,                                                                              \
         .def = LVR_HEAD_LAZY,                                                                               \
         .choices = lvr_choices_head,                                                                        \
         .help = "output head: row by row along the accepted path, or for all verified rows at once"},       \
        {.name = "accel-launch-us",                                                                          \
         .type = LVR_PARAM_DOUBLE,                                                                           \
         .offset = offsetof(lvr_session_options, accel_launch_us),                                           \
         .min = 0,                                                                                           \
         .max = 1e6,                                                                                         \
         .def = 0,                                                                                           \
         .unit = "us",                                                                                       \
         .help = "delay each ticket's start, as a phone's NPU does"},                                        \
        {.name = "accel-sync-us",                                                                            \
         .type = LVR_PARAM_DOUBLE,                                                                           \
         .offset = offsetof(lvr_session_options, accel_sync_us),                                             \
         .min = 0,                                                                                           \
         .max = 1e6,                                                                                         \
         .def = 0,                                                                                           \
         .unit = "us",                                                                                       \
         .help = "delay the moment that its end is seen"},                                                   \
        {.name = "chat",                                                                                     \
         .type = LVR_PARAM_BOOL,                                                                             \
         .offset = offsetof(lvr_session_options, chat),                                                      \
         .max = 1,                                                                                           \
         .help = "put each prompt as a user's message into the target's own chat format"},                   \
        {.name = "system",                                                                                   \
         .type = LVR_PARAM_STR,                                                                              \
         .offset = offsetof(lvr_session_options, system),                                                    \
         .def = NAN,                                                                                         \
         .help = "system message; with --chat"},                                                             \
    {                                                                                                        \
        .name = "ignore-eos", .type = LVR_PARAM_BOOL, .offset = offsetof(lvr_session_options, ignore_eos),   \
        .max = 1, .help = "go on after the end-of-text token"                                                \
    }

/* The command line, to tell an option that was given from one at its default. */
typedef struct lvr_command_line {
    const lvr_param *table;
    size_t n;
    int argc;
    char *const *argv;
} lvr_command_line;

/* Whether the option of this name is in the table and was given. */
bool lvr_command_line_has(const lvr_command_line *line, const char *option);

/* Everything a session is made from; paths and names are borrowed from the options. */
typedef struct lvr_session_setup {
    lvr_policy_file
        file; /* the policy in use; of a policy file also its schedule, conditions and identities */
    bool from_file;
    bool what_if; /* something does not match and was let pass */
    char cost_target_sha256[LVR_SHA256_HEX_BYTES], cost_draft_sha256[LVR_SHA256_HEX_BYTES];
    char emulated_name[64], accel_name[16];
    lvr_command_line line; /* as given, for warnings */
    lvr_session_config config;
    uint32_t n_predict;
} lvr_session_setup;

/* Options, policy file and cost model become one setup; contradictions are errors unless --what-if. setup
 * must not be moved. */
lvr_status lvr_session_options_resolve(const lvr_session_options *o, const lvr_command_line *line,
                                       lvr_session_setup *ret, lvr_error *err);
/* Opens the session and compares what it is with what the policy file and the cost model are for. */
lvr_status lvr_session_setup_open(lvr_session_setup *setup, const lvr_session_options *o, lvr_session **ret,
                                  lvr_error *err);
/* The files that the options name; NULL among them where there is none. */
#define LVR_SESSION_INPUTS 7
void lvr_session_options_inputs(const lvr_session_options *o, const char *ret[LVR_SESSION_INPUTS]);
lvr_status lvr_session_options_prompts(const lvr_session_options *o, lvr_prompts *ret, lvr_error *err);
/* The prompt's tokens, in the model's chat format if --chat was given; a malloc'ed array. */
lvr_status lvr_session_options_tokenize(const lvr_session_options *o, const lvr_tokenizer *t,
                                        const lvr_prompt *prompt, int32_t **ret_tokens, uint32_t *ret_n,
                                        lvr_error *err);

#endif
