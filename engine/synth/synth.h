/*
 * Writes random-weight models of a given shape as GGUF (recipe.h says what is in them). The same options give
 * the same bytes on every machine and for every number of threads; models of one shape and seed have the same
 * weights before quantisation, whatever the type. Memory: a few MiB and the vocabulary, whatever the size.
 */
#ifndef LVR_ENGINE_SYNTH_H
#define LVR_ENGINE_SYNTH_H

#include "engine/synth/recipe.h"
#include <stdatomic.h>

typedef struct lvr_synth_options {
    const lvr_shape *shape;
    const char *vocab_path; /* a GGUF with a vocabulary */
    lvr_wtype type, embd_type;
    uint64_t seed;
    const lvr_synth_planting *planting; /* NULL: plain random weights */
    uint32_t threads;
    atomic_bool *cancel; /* NULL, or set by a signal handler: LVR_ERR_INTERRUPTED, no file is left */
} lvr_synth_options;

typedef struct lvr_synth_result {
    uint64_t file_bytes, weights;
    uint32_t n_tensors, vocab_own, chain_words;
    lvr_synth_planting planting; /* as resolved */
} lvr_synth_result;

lvr_status lvr_synth_write(const lvr_synth_options *o, const char *path, lvr_synth_result *ret,
                           lvr_error *err);

#endif
