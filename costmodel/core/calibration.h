/* Monotone map from the draft's conditional probability to the probability that the target takes the token
 * (given that it took the parent): piecewise linear through knots, clamped to [0, 1]. Identity if n == 0. */
#ifndef LVR_CORE_CALIBRATION_H
#define LVR_CORE_CALIBRATION_H

#include "common/yaml.h"
#include <stdint.h>

#define LVR_CALIBRATION_MAX_KNOTS 64

typedef struct lvr_calibration {
    uint32_t n;
    double q[LVR_CALIBRATION_MAX_KNOTS]; /* strictly ascending, in [0, 1] */
    double p[LVR_CALIBRATION_MAX_KNOTS]; /* ascending, in [0, 1] */
} lvr_calibration;

double lvr_calibrate(const lvr_calibration *c, double q);
lvr_status lvr_calibration_from_yaml(const lvr_yaml_node *map, lvr_calibration *ret, lvr_error *err);
void lvr_calibration_to_yaml(const lvr_calibration *c, lvr_yaml_out *y);

#endif
