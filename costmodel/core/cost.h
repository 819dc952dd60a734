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
#define LVR_MAX_LAYERS 256u
#define LVR_MAX_RING_SLOTS 64u
#define LVR_MAX_SLICE_BYTES (16u << 20)

typedef enum lvr_unit { LVR_UNIT_CPU = 0, LVR_UNIT_NPU = 1 } lvr_unit;

typedef enum lvr_op {
    LVR_OP_DRAFT = 0,  /* one draft step: all draft layers, head and top-k, `rows` rows */
    LVR_OP_LAYER = 1,  /* one target layer, `rows` rows */
    LVR_OP_HEAD = 2,   /* target output norm, head and token choice, one row */
    LVR_OP_EMBED = 3,  /* target embedding rows at the start of a pass */
    LVR_OP_COMMIT = 4, /* KV compaction and bookkeeping at the end of a round */
    LVR_OP_PLAN = 5,   /* one call of the policy (choice of nodes to expand or verify) */
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

typedef struct lvr_cost_table {
    lvr_op_cost op[LVR_OP_COUNT]; /* on the CPU */
    lvr_flash_params flash;
} lvr_cost_table;

/* What has to be streamed, and how: fixed for a run. */
typedef struct lvr_geometry {
    uint32_t n_layers;
    uint64_t layer_bytes[LVR_MAX_LAYERS]; /* aligned bytes of each layer's weights in the pack */
    bool resident[LVR_MAX_LAYERS];
    uint64_t slice_bytes; /* a layer is read in slices of at most this many bytes (multiple of 4096) */
    uint32_t ring_slots;  /* staged layers */
    lvr_io_mode io_mode;
} lvr_geometry;

uint64_t lvr_geometry_stream_bytes(const lvr_geometry *g); /* per pass */
/* Marks round(fraction * n_layers) layers resident, spread evenly over the depth (so that reads never pause
 * for long). */
void lvr_geometry_set_resident(lvr_geometry *g, double fraction);
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
