/*
 * How often two noisy readings of a planted chain agree. In a model of the chain the logit of successor k of
 * a token of ease e is, but for a constant, -k * gap * e + noise * N(0, 1): only clarity = gap / noise
 * counts. Draft and target have independent noise, an early layer and the last one share a part of theirs.
 * Computed with a fixed set of random numbers, by additions and multiplications: the same on every machine.
 */
#ifndef LVR_ENGINE_SYNTH_ODDS_H
#define LVR_ENGINE_SYNTH_ODDS_H

#include "common/error.h"
#include <stdint.h>

typedef struct lvr_odds lvr_odds;

lvr_status lvr_odds_new(uint32_t n_successors, lvr_odds **ret, lvr_error *err);
void lvr_odds_free(lvr_odds *o);

/* Rate at which two models of this clarity have the same likeliest token. Rises from 1 / n_successors to 1.
 */
double lvr_odds_agreement(const lvr_odds *o, double clarity);
/* The clarity for a rate, to three digits. LVR_ERR_CONFIG names the range of rates. */
lvr_status lvr_odds_clarity(const lvr_odds *o, double rate, double *ret, lvr_error *err);

/* Rate at which a layer with a fraction of the layers' noise agrees with the last one. `fixed`: the share of
 * the last one's noise energy that does not come from the layers. */
double lvr_odds_early(const lvr_odds *o, double clarity, double fixed, double fraction);
/* The fraction for a rate, to three digits. LVR_ERR_CONFIG names the range of rates. */
lvr_status lvr_odds_fraction(const lvr_odds *o, double clarity, double fixed, double rate, double *ret,
                             lvr_error *err);

#endif
