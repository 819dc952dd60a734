/*
 * The cost table and the round's cost: what a policy's choice is priced with, in engine and simulator alike.
 * Times are in nanoseconds as double (they are model values, not clock readings).
 * Sources: method.md section 3.3 (reconstruction; the paper's own formulas are not public).
 */
#ifndef LVR_CORE_COST_H
#define LVR_CORE_COST_H

#include "common/yaml.h"
#include "costmodel/core/flash_model.h"
#include <stdbool.h>
#include <stdint.h>

#define LVR_CURVE_MAX_KNOTS 24
#define LVR_NPU_MAX_BUCKETS 8u
#define LVR_MAX_LAYERS 256u
#define LVR_MAX_RING_SLOTS 64u
#define LVR_MAX_SLICE_BYTES (16u << 20)

typedef enum lvr_unit { LVR_UNIT_CPU = 0, LVR_UNIT_NPU = 1 } lvr_unit;

/* Where operators run that an accelerator can run too (the target's layers, draft steps). */
typedef enum lvr_place {
    LVR_PLACE_CPU = 0,
    LVR_PLACE_NPU = 1,
    LVR_PLACE_AUTO = 2, /* per operator and row count, whichever the cost table says is cheaper */
} lvr_place;

/* When the target's output head is run. */
typedef enum lvr_head {
    LVR_HEAD_LAZY = 0,  /* row by row along the path that is being accepted (paper section 4.4) */
    LVR_HEAD_EAGER = 1, /* for all verified rows in one go before the walk, as conventional engines do */
} lvr_head;

lvr_status lvr_head_parse(const char *text, lvr_head *ret, lvr_error *err);
const char *lvr_head_name(lvr_head head);

lvr_status lvr_place_parse(const char *text, lvr_place *ret, lvr_error *err);
const char *lvr_place_name(lvr_place place);

typedef enum lvr_op {
    LVR_OP_DRAFT = 0,  /* one draft step: all draft layers, head and top-k, `rows` rows */
    LVR_OP_LAYER = 1,  /* one target layer, `rows` rows */
    LVR_OP_HEAD = 2,   /* target output norm, head and token choice, one row */
    LVR_OP_EMBED = 3,  /* target embedding rows at the start of a pass */
    LVR_OP_COMMIT = 4, /* KV compaction and bookkeeping at the end of a round */
    LVR_OP_PLAN = 5,   /* one call of the policy (choice of nodes to expand, to verify or to drop) */
    LVR_OP_SCORE = 6,  /* raw exit features of rows between two layers; a table may lack it: costs nothing */
    LVR_OP_COUNT
} lvr_op;
const char *lvr_op_name(lvr_op op);

typedef enum lvr_io_mode {
    LVR_IO_SERIAL = 0, /* read a layer, then compute it: nothing overlaps (the paper's baseline) */
    LVR_IO_PIPELINED =
        1, /* reads run ahead of compute, across layers and rounds, as far as the ring allows */
} lvr_io_mode;

lvr_status lvr_io_mode_parse(const char *text, lvr_io_mode *ret, lvr_error *err);
const char *lvr_io_mode_name(lvr_io_mode mode);

/* ns(rows): piecewise linear through knots, constant slope beyond the last two, never negative. */
typedef struct lvr_curve {
    uint32_t n;
    uint32_t rows[LVR_CURVE_MAX_KNOTS]; /* strictly ascending, from 1 */
    double ns[LVR_CURVE_MAX_KNOTS];
} lvr_curve;
double lvr_curve_ns(const lvr_curve *c, double rows);

/* One operator: ns = curve(rows) + ctx_ns * rows * context, context in positions already cached. */
typedef struct lvr_op_cost {
    lvr_curve curve;
    double ctx_ns;
} lvr_op_cost;
double lvr_op_cost_ns(const lvr_op_cost *c, uint32_t rows, uint32_t context);

/* One operator on an accelerator, as one ticket: launch_ns from the submission to the start, then a staircase
 * over the row buckets that graphs are built for, then sync_ns until the host goes on. A bucket runs all of
 * its rows, also those that stand for nothing, so context counts per row of the bucket. Beyond the largest
 * bucket in proportion to the rows. */
typedef struct lvr_npu_cost {
    uint32_t n;                           /* 0: the operator has no accelerator terms */
    uint32_t bucket[LVR_NPU_MAX_BUCKETS]; /* strictly ascending */
    double ns[LVR_NPU_MAX_BUCKETS];
    double ctx_ns;
    double launch_ns, sync_ns;
} lvr_npu_cost;
/* The bucket that holds `rows`, or `rows` beyond the largest. */
uint32_t lvr_bucket_of(const uint32_t *buckets, uint32_t n, uint32_t rows);
double lvr_npu_run_ns(const lvr_npu_cost *c, uint32_t rows, uint32_t context);    /* start to end */
double lvr_npu_ticket_ns(const lvr_npu_cost *c, uint32_t rows, uint32_t context); /* launch and sync too */

typedef struct lvr_cost_table {
    lvr_op_cost op[LVR_OP_COUNT];   /* on the CPU; curve.n 0: never measured there (then npu has it) */
    lvr_npu_cost npu[LVR_OP_COUNT]; /* on the accelerator, whole layers a ticket */
    lvr_flash_params flash;
} lvr_cost_table;

/* Where `place` puts an operator: both hosts ask this one function. AUTO without accelerator terms is the
 * CPU; with equal prices too. */
lvr_unit lvr_cost_unit(const lvr_cost_table *t, lvr_place place, lvr_op op, uint32_t rows, uint32_t context);
/* What it costs the host there, when nothing overlaps. An operator that has no terms for its unit is priced
 * with those of the other one. */
double lvr_cost_op_ns(const lvr_cost_table *t, lvr_place place, lvr_op op, uint32_t rows, uint32_t context);
bool lvr_cost_has_npu(const lvr_cost_table *t);
/* The crossover w*: the least number of rows, up to max_rows, at which the accelerator is the cheaper place
 * for an operator; 0: never. A staircase may make the CPU cheaper again beyond it. */
uint32_t lvr_cost_crossover(const lvr_cost_table *t, lvr_op op, uint32_t context, uint32_t max_rows);
/* The heads of a round of `rows` rows of which n_heads are walked. Eager: all rows in one go, which only a
 * table with several knots knows; one knot counts once a row. */
double lvr_cost_heads_ns(const lvr_cost_table *t, lvr_head head, uint32_t rows, double n_heads);

/* What has to be streamed, and how: fixed for a run. */
typedef struct lvr_geometry {
    uint32_t n_layers;
    uint64_t layer_bytes[LVR_MAX_LAYERS]; /* aligned bytes of each layer's weights in the pack */
    bool resident[LVR_MAX_LAYERS];
    uint64_t slice_bytes; /* a layer is read in slices of at most this many bytes (multiple of 4096) */
    uint32_t ring_slots;  /* staged layers */
    lvr_io_mode io_mode;
    lvr_place place;       /* of the target's layers */
    lvr_place place_draft; /* of draft steps; beside a layer on the accelerator they run on the CPU */
    lvr_head head;
} lvr_geometry;

/* Which layers stay in DRAM when not all do. */
typedef enum lvr_residency {
    LVR_RESIDENT_FIRST,
    LVR_RESIDENT_SPREAD, /* evenly over the depth, so that reads never pause for long */
    LVR_RESIDENT_LAST,
} lvr_residency;

uint64_t lvr_geometry_stream_bytes(const lvr_geometry *g);     /* per pass */
uint64_t lvr_geometry_largest_streamed(const lvr_geometry *g); /* bytes of a layer; 0: none is streamed */
/* Marks round(fraction * n_layers) layers resident. */
void lvr_geometry_set_resident(lvr_geometry *g, double fraction, lvr_residency where);
double lvr_geometry_resident_fraction(const lvr_geometry *g); /* of layer bytes */

double lvr_cost_io_ns(const lvr_cost_table *t, const lvr_geometry *g); /* T_io of a pass */
double lvr_cost_verify_ns(const lvr_cost_table *t, const lvr_geometry *g, uint32_t rows,
                          uint32_t context); /* V(n), compute only */
/* C of a round: serial      T_draft + T_io + V(n) + heads
 *               pipelined   (T_draft + heads) + max(V(n), T_io - min(ring, B * (T_draft + heads)) / B)
 * (reads go on during draft and heads until the ring is full). */
double lvr_cost_round_ns(const lvr_cost_table *t, const lvr_geometry *g, double draft_ns, uint32_t rows,
                         double n_heads, uint32_t context);
/* The same, for many evaluations under one table and schedule: the parts that do not change are computed
 * once. */
typedef struct lvr_round_pricer {
    const lvr_cost_table *table;
    const lvr_geometry *geometry;
    double io_ns, ring_ns; /* T_io; time to fill the ring */
} lvr_round_pricer;
lvr_round_pricer lvr_round_pricer_new(const lvr_cost_table *t, const lvr_geometry *g);
double lvr_round_price_ns(const lvr_round_pricer *p, double draft_ns, uint32_t rows, double n_heads,
                          uint32_t context);
/* T_io / (T_io + V(1) + head) of a serial autoregressive pass. */
double lvr_cost_io_share(const lvr_cost_table *t, const lvr_geometry *g, uint32_t context);

lvr_status lvr_cost_table_from_yaml(const lvr_yaml_node *map, lvr_cost_table *ret, lvr_error *err);
void lvr_cost_table_to_yaml(const lvr_cost_table *t, lvr_yaml_out *y);
lvr_status lvr_geometry_from_yaml(const lvr_yaml_node *map, lvr_geometry *ret, lvr_error *err);
void lvr_geometry_to_yaml(const lvr_geometry *g, lvr_yaml_out *y);

#endif
