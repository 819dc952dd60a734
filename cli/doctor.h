/* The inside of `lever doctor`: what its parts find, and how they report it. */
#ifndef LVR_CLI_DOCTOR_H
#define LVR_CLI_DOCTOR_H

#include "common/error.h"
#include "common/file_system.h"
#include "common/json.h"
#include "engine/flash/calibrate.h"
#include "engine/kernels/kernels.h"

#define LVR_DOCTOR_MAX_PROBLEMS 12u

typedef struct doctor_problem {
    char what[LVR_ERROR_MSG_BYTES];
    const char *mend; /* NULL: said in `what` */
} doctor_problem;

typedef struct doctor_flash {
    bool has_uring;
    bool measured;
    const char *path; /* as given */
    lvr_file_system file_system;
    bool direct;
    double first_bytes_per_s, warm_bytes_per_s;
    bool has_calibration; /* measured now, or kept from before */
    bool calibrated_now, kept;
    lvr_flash_calibration calibration;
} doctor_flash;

typedef struct doctor_findings {
    char cpu_flags[512];
    lvr_cpu_level level;
    uint32_t cores;
    uint64_t dram_bytes, available_bytes, swap_bytes;
    uint64_t cgroup_bytes; /* 0: no limit */
    uint32_t cgroup_version;
    double dram_one_bytes_per_s, dram_all_bytes_per_s; /* read by one thread, by all cores; 0: not measured */
    doctor_flash flash;
    uint32_t n_problems;
    doctor_problem problems[LVR_DOCTOR_MAX_PROBLEMS];
} doctor_findings;

void lvr_doctor_add_problem(doctor_findings *f, const char *what, const char *mend);

/* What to look at: at most one of the three is given. */
typedef struct doctor_flash_options {
    const char *file;      /* measure by reading it */
    const char *dir;       /* measure with a temporary file in it ... */
    uint64_t temp_bytes;   /* ... of this size */
    const char *calibrate; /* measure by reading it, calibrate and keep the calibration */
} doctor_flash_options;

lvr_status lvr_doctor_look_at_flash(const doctor_flash_options *o, doctor_findings *f, lvr_error *err);
void lvr_doctor_flash_text(const doctor_flash *fl, lvr_buf *out);
void lvr_doctor_flash_json(const doctor_flash *fl, lvr_json *j);

#endif
