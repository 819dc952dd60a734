/* Calibrations in the cache directory: one small YAML file a device and file system. Nothing in here is an
 * error: what cannot be read or written costs a measurement. */
#include "engine/flash/calibrate.h"

#include "common/cache_dir.h"
#include "common/file_system.h"
#include "common/fs.h"
#include "common/log.h"
#include "common/yaml.h"
#include "costmodel/core/cost.h"
#include "engine/flash/flash.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FILE_VERSION 1u
#define MIN_RATE 1.0 /* bytes/s */
#define MAX_RATE 1e12

/* ---- which file ---- */

typedef struct identity {
    char device[24], type[32], id[24];
} identity;

static lvr_status identify(const char *path, identity *ret, lvr_error *err)
{
    lvr_file_system fs;
    const lvr_status status = lvr_file_system_of(path, &fs, err);
    if (status != LVR_OK)
        return status;
    snprintf(ret->device, sizeof ret->device, "%" PRIu32 ":%" PRIu32, fs.device_major, fs.device_minor);
    snprintf(ret->type, sizeof ret->type, "%s", fs.type);
    snprintf(ret->id, sizeof ret->id, "%016" PRIx64, fs.id);
    return LVR_OK;
}

static lvr_status find_file(const identity *who, char **ret_dir, char **ret_file, lvr_error *err)
{
    char *dir = NULL, *file = NULL;
    const lvr_status status = lvr_cache_dir(&dir, err);
    if (status != LVR_OK)
        return status;
    const size_t n = strcspn(who->device, ":");
    if (asprintf(&file, "%s/flash-%.*s-%s-%s-%s.yaml", dir, (int)n, who->device, who->device + n + 1,
                 who->type, who->id) < 0) {
        free(dir);
        return lvr_fail(err, LVR_ERR_NOMEM, "out of memory");
    }
    *ret_dir = dir;
    *ret_file = file;
    return LVR_OK;
}

/* ---- writing ---- */

static void write_cells(const lvr_flash_calibration *c, lvr_yaml_out *y)
{
    uint64_t bytes[LVR_CALIBRATION_MAX_CELLS], depths[LVR_CALIBRATION_MAX_CELLS];
    double rates[LVR_CALIBRATION_MAX_CELLS];
    for (uint32_t i = 0; i < c->n_cells; i++) {
        bytes[i] = c->cells[i].request_bytes;
        depths[i] = c->cells[i].depth;
        rates[i] = c->cells[i].bytes_per_s;
    }
    lvr_yaml_out_map(y, "cells");
    lvr_yaml_out_u64s(y, "request_bytes", bytes, c->n_cells);
    lvr_yaml_out_u64s(y, "depth", depths, c->n_cells);
    lvr_yaml_out_doubles(y, "bytes_per_s", rates, c->n_cells);
    lvr_yaml_out_end(y);
}

static void write_text(const identity *who, const lvr_flash_calibration *c, lvr_buf *out)
{
    lvr_yaml_out y;
    lvr_yaml_out_init(&y, out);
    lvr_yaml_out_comment(&y, "How fast this device reads, by lever doctor --flash; delete it to forget.");
    lvr_yaml_out_u64(&y, "version", FILE_VERSION);
    lvr_yaml_out_str(&y, "device", who->device);
    lvr_yaml_out_str(&y, "file_system", who->type);
    lvr_yaml_out_str(&y, "file_system_id", who->id);
    lvr_yaml_out_str(&y, "kernel", c->kernel);
    lvr_yaml_out_str(&y, "date", c->date);
    lvr_yaml_out_str(&y, "engine", c->engine);
    lvr_yaml_out_u64(&y, "request_bytes", c->request_bytes);
    lvr_yaml_out_u64(&y, "depth", c->depth);
    lvr_yaml_out_double(&y, "bytes_per_s", c->bytes_per_s);
    lvr_yaml_out_double(&y, "first_bytes_per_s", c->first_bytes_per_s);
    write_cells(c, &y);
}

static lvr_status save(const char *path, const lvr_flash_calibration *c, lvr_error *err)
{
    identity who;
    char *dir = NULL, *file = NULL;
    lvr_buf text = LVR_BUF_INIT;
    lvr_status status = identify(path, &who, err);
    if (status == LVR_OK)
        status = find_file(&who, &dir, &file, err);
    if (status == LVR_OK)
        status = lvr_mkdirs(dir, err);
    if (status != LVR_OK)
        goto out;
    write_text(&who, c, &text);
    status = text.failed ? lvr_fail(err, LVR_ERR_NOMEM, "out of memory")
                         : lvr_write_file_atomic(file, text.data, text.len, err);
out:
    lvr_buf_free(&text);
    free(dir);
    free(file);
    return status;
}

bool lvr_flash_calibration_save(const char *path, const lvr_flash_calibration *c)
{
    lvr_error err = LVR_ERROR_INIT;
    if (!c->direct) {
        lvr_log(LVR_LOG_INFO,
                "the calibration is not kept: %s was read through the page cache, not from its device", path);
        return false;
    }
    if (save(path, c, &err) == LVR_OK)
        return true;
    lvr_log(LVR_LOG_WARN, "the calibration is not kept: %s", err.msg);
    return false;
}

/* ---- reading ---- */

static lvr_status check_str(const lvr_yaml_node *map, const char *key, const char *expected, lvr_error *err)
{
    const char *found = NULL;
    const lvr_status status = lvr_yaml_get_str(map, key, &found, err);
    if (status != LVR_OK || strcmp(found, expected) == 0)
        return status;
    return lvr_fail(err, LVR_ERR_CONFIG, "%s: %s: expected %s, found %s", lvr_yaml_where(map), key, expected,
                    found);
}

/* It is printed: what would steer a terminal has no place in it. */
static lvr_status take_str(const lvr_yaml_node *map, const char *key, char *ret, size_t n, lvr_error *err)
{
    const char *found = NULL;
    const lvr_status status = lvr_yaml_get_str(map, key, &found, err);
    if (status != LVR_OK)
        return status;
    for (const char *c = found; *c; c++)
        if ((unsigned char)*c < 0x20 || (unsigned char)*c >= 0x7f)
            return lvr_fail(err, LVR_ERR_CONFIG, "%s: %s: expected printable ASCII, found the byte 0x%02x",
                            lvr_yaml_where(map), key, (unsigned)(unsigned char)*c);
    snprintf(ret, n, "%s", found);
    return LVR_OK;
}

static lvr_status check_engine(const lvr_yaml_node *map, const char *name, lvr_error *err)
{
    if (strcmp(name, "uring") == 0 || strcmp(name, "pread") == 0)
        return LVR_OK;
    return lvr_fail(err, LVR_ERR_CONFIG, "%s: engine: expected uring or pread, found %s", lvr_yaml_where(map),
                    name);
}

static lvr_status check_request(const lvr_yaml_node *map, uint64_t bytes, lvr_error *err)
{
    if (bytes % LVR_FLASH_ALIGN == 0)
        return LVR_OK;
    return lvr_fail(err, LVR_ERR_CONFIG, "%s: request_bytes: expected a multiple of %u, found %" PRIu64,
                    lvr_yaml_where(map), LVR_FLASH_ALIGN, bytes);
}

static lvr_status take_cell(const lvr_yaml_node *sizes, const lvr_yaml_node *depths,
                            const lvr_yaml_node *rates, size_t i, lvr_calibration_cell *ret, lvr_error *err)
{
    uint64_t depth = 0;
    lvr_status status = lvr_yaml_as_u64(lvr_yaml_at(sizes, i), LVR_FLASH_ALIGN, LVR_MAX_SLICE_BYTES,
                                        &ret->request_bytes, err);
    if (status == LVR_OK)
        status = check_request(sizes, ret->request_bytes, err);
    if (status == LVR_OK)
        status = lvr_yaml_as_u64(lvr_yaml_at(depths, i), 1, LVR_FLASH_MAX_DEPTH, &depth, err);
    if (status == LVR_OK)
        status = lvr_yaml_as_double(lvr_yaml_at(rates, i), MIN_RATE, MAX_RATE, &ret->bytes_per_s, err);
    ret->depth = (uint32_t)depth;
    return status;
}

static lvr_status take_cells(const lvr_yaml_node *root, lvr_flash_calibration *c, lvr_error *err)
{
    const lvr_yaml_node *map = NULL, *sizes = NULL, *depths = NULL, *rates = NULL;
    lvr_status status = lvr_yaml_get_map(root, "cells", &map, err);
    if (status == LVR_OK)
        status = lvr_yaml_get_seq(map, "request_bytes", &sizes, err);
    if (status == LVR_OK)
        status = lvr_yaml_get_seq(map, "depth", &depths, err);
    if (status == LVR_OK)
        status = lvr_yaml_get_seq(map, "bytes_per_s", &rates, err);
    if (status != LVR_OK)
        return status;
    const size_t n = lvr_yaml_len(sizes);
    if (n < 1 || n > LVR_CALIBRATION_MAX_CELLS || n != lvr_yaml_len(depths) || n != lvr_yaml_len(rates))
        return lvr_fail(
            err, LVR_ERR_CONFIG, "%s: cells: expected 1 to %u in each list, found %zu, %zu and %zu",
            lvr_yaml_where(map), LVR_CALIBRATION_MAX_CELLS, n, lvr_yaml_len(depths), lvr_yaml_len(rates));
    for (size_t i = 0; i < n && status == LVR_OK; i++)
        status = take_cell(sizes, depths, rates, i, &c->cells[i], err);
    c->n_cells = (uint32_t)n;
    return status;
}

static lvr_status check_identity(const lvr_yaml_node *root, const identity *who, lvr_error *err)
{
    uint64_t version = 0;
    lvr_status status = lvr_yaml_get_u64(root, "version", FILE_VERSION, FILE_VERSION, &version, err);
    if (status == LVR_OK)
        status = check_str(root, "device", who->device, err);
    if (status == LVR_OK)
        status = check_str(root, "file_system", who->type, err);
    return status == LVR_OK ? check_str(root, "file_system_id", who->id, err) : status;
}

static lvr_status take_all(const lvr_yaml_node *root, lvr_flash_calibration *c, lvr_error *err)
{
    uint64_t depth = 0;
    lvr_status status = take_str(root, "kernel", c->kernel, sizeof c->kernel, err);
    if (status == LVR_OK)
        status = take_str(root, "date", c->date, sizeof c->date, err);
    if (status == LVR_OK)
        status = take_str(root, "engine", c->engine, sizeof c->engine, err);
    if (status == LVR_OK)
        status = check_engine(root, c->engine, err);
    if (status == LVR_OK)
        status = lvr_yaml_get_u64(root, "request_bytes", LVR_FLASH_ALIGN, LVR_MAX_SLICE_BYTES,
                                  &c->request_bytes, err);
    if (status == LVR_OK)
        status = check_request(root, c->request_bytes, err);
    if (status == LVR_OK)
        status = lvr_yaml_get_u64(root, "depth", 1, LVR_FLASH_MAX_DEPTH, &depth, err);
    if (status == LVR_OK)
        status = lvr_yaml_get_double(root, "bytes_per_s", MIN_RATE, MAX_RATE, &c->bytes_per_s, err);
    if (status == LVR_OK)
        status = lvr_yaml_get_double(root, "first_bytes_per_s", 0, MAX_RATE, &c->first_bytes_per_s, err);
    c->depth = (uint32_t)depth;
    return status == LVR_OK ? take_cells(root, c, err) : status;
}

static lvr_status load(const char *file, const identity *who, lvr_flash_calibration *ret, lvr_error *err)
{
    lvr_yaml_doc *doc = NULL;
    lvr_flash_calibration c = {.direct = true};
    lvr_status status = lvr_yaml_load_file(file, &doc, err);
    if (status != LVR_OK)
        return status;
    status = check_identity(lvr_yaml_root(doc), who, err);
    if (status == LVR_OK)
        status = take_all(lvr_yaml_root(doc), &c, err);
    if (status == LVR_OK)
        status = lvr_yaml_check_used(doc, err);
    lvr_yaml_free(doc);
    if (status == LVR_OK)
        *ret = c;
    return status;
}

bool lvr_flash_calibration_load(const char *path, lvr_flash_calibration *ret)
{
    identity who;
    char *dir = NULL, *file = NULL;
    lvr_error err = LVR_ERROR_INIT;
    bool loaded = false;
    if (identify(path, &who, NULL) != LVR_OK || find_file(&who, &dir, &file, NULL) != LVR_OK)
        return false;
    if (access(file, F_OK) == 0) {
        loaded = load(file, &who, ret, &err) == LVR_OK;
        if (!loaded)
            lvr_log(LVR_LOG_WARN,
                    "the calibration of this device is not used: %s; make it again with lever "
                    "doctor --flash FILE",
                    err.msg);
    }
    free(dir);
    free(file);
    return loaded;
}
