/* Time in integer nanoseconds. */
#ifndef LVR_COMMON_CLOCK_H
#define LVR_COMMON_CLOCK_H

#include <stdint.h>

uint64_t lvr_now_ns(void);      /* CLOCK_MONOTONIC_RAW: the clock of traces */
uint64_t lvr_realtime_ns(void); /* CLOCK_REALTIME */
uint64_t lvr_boottime_ns(void); /* CLOCK_BOOTTIME */
/* `deadline_ns` is on lvr_now_ns's clock. Sleeps, then spins the last 60 microseconds; goes on after signals.
 */
void lvr_sleep_until_ns(uint64_t deadline_ns);

#endif
