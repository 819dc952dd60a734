/* Device descriptions: the ones we ship, finding them, and damage of every kind. */
#include "common/fs.h"
#include "common/rng.h"
#include "costmodel/core/device_preset.h"
#include <criterion/criterion.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char good[] = "name: test\n"
                           "description: a test\n"
                           "flash:\n"
                           "  t0_ns: 100_000\n"
                           "  lane_bytes_per_s: 500_000_000\n"
                           "  max_bytes_per_s: 1_000_000_000\n"
                           "  depth: 4\n";

static lvr_status load_text(const char *text, lvr_device_preset *ret, lvr_error *err)
{
    return lvr_device_load_mem("test.yaml", text, strlen(text), ret, err);
}

static void config_dir(char *ret, size_t n)
{
    const char *root = getenv("LVR_SOURCE_ROOT");
    snprintf(ret, n, "%s/configs", root ? root : ".");
}

Test(flash_device, every_shipped_description_loads_by_its_name)
{
    char dir_path[4096], devices[4200];
    config_dir(dir_path, sizeof dir_path);
    snprintf(devices, sizeof devices, "%s/devices", dir_path);
    setenv("LVR_CONFIG_DIR", dir_path, 1);
    DIR *dir = opendir(devices);
    cr_assert(dir, "%s", devices);
    int n = 0;
    for (const struct dirent *e; (e = readdir(dir));) {
        const char *dot = strrchr(e->d_name, '.');
        if (!dot || strcmp(dot, ".yaml") != 0)
            continue;
        char name[300];
        snprintf(name, sizeof name, "%.*s", (int)(dot - e->d_name), e->d_name);
        lvr_device_preset d;
        lvr_error err = LVR_ERROR_INIT;
        cr_assert_eq(lvr_device_load(name, &d, &err), LVR_OK, "%s", err.msg);
        cr_assert_str_eq(d.name, name);
        cr_assert(d.has_flash);
        n++;
    }
    closedir(dir);
    cr_assert(n >= 6);
}

Test(flash_device, a_file_is_a_description_too)
{
    char path[] = "flash-device.XXXXXX.yaml";
    const int fd = mkstemps(path, 5);
    cr_assert(fd >= 0);
    cr_assert_eq(lvr_pwrite_all(fd, good, strlen(good), 0, path, NULL), LVR_OK);
    close(fd);
    lvr_device_preset d;
    lvr_error err = LVR_ERROR_INIT;
    const lvr_status status = lvr_device_load(path, &d, &err);
    unlink(path);
    cr_assert_eq(status, LVR_OK, "%s", err.msg);
    cr_assert_str_eq(d.name, "test");
    cr_assert_eq(d.flash.depth, 4);
    cr_assert_eq(d.flash.max_bytes_per_s, 1000000000);
    cr_assert(!d.has_cost);
    cr_assert_eq(lvr_device_load("./no-such-device.yaml", &d, &err), LVR_ERR_IO);
}

Test(flash_device, an_unknown_name_suggests_and_lists)
{
    char dir_path[4096];
    config_dir(dir_path, sizeof dir_path);
    setenv("LVR_CONFIG_DIR", dir_path, 1);
    lvr_device_preset d;
    lvr_error err = LVR_ERROR_INIT;
    cr_assert_eq(lvr_device_load("oneplus-15r", &d, &err), LVR_ERR_CONFIG);
    cr_assert(strstr(err.msg, "did you mean oneplus15r?"), "%s", err.msg);
    cr_assert(strstr(err.msg, "emulated-100, emulated-1000"), "%s", err.msg);
    cr_assert_eq(lvr_device_load("", &d, &err), LVR_ERR_CONFIG);
    setenv("LVR_CONFIG_DIR", "/nonexistent", 1);
    cr_assert_eq(lvr_device_load("oneplus15r", &d, &err), LVR_ERR_CONFIG);
    cr_assert(strstr(err.msg, "/nonexistent/devices"), "%s", err.msg);
}

Test(flash_device, wrong_descriptions_are_refused)
{
    static const char *const bad[] = {
        "",
        "[]\n",
        "name: x\ndescription: y\n", /* neither flash nor cost */
        "name: x\ndescription: y\nflash: 3\n",
        "description: y\nflash: {t0_ns: 1, lane_bytes_per_s: 1, max_bytes_per_s: 1, depth: 1}\n",
        "name: ''\ndescription: y\nflash: {t0_ns: 1, lane_bytes_per_s: 1, max_bytes_per_s: 1, depth: 1}\n",
        "name: x\ndescription: y\nflash: {t0_ns: 1, lane_bytes_per_s: 2, max_bytes_per_s: 1, depth: 1}\n",
        "name: x\ndescription: y\nflsh: {}\nflash: {t0_ns: 1, lane_bytes_per_s: 1, max_bytes_per_s: 1, "
        "depth: 1}\n",
        "name: x\ndescription: y\ncost: {}\nflash: {t0_ns: 1, lane_bytes_per_s: 1, max_bytes_per_s: 1, "
        "depth: 1}\n",
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        lvr_device_preset d;
        memset(&d, 0x5a, sizeof d);
        lvr_device_preset before;
        memcpy(&before, &d, sizeof d);
        lvr_error err = LVR_ERROR_INIT;
        cr_assert_neq(load_text(bad[i], &d, &err), LVR_OK, "case %zu", i);
        cr_assert(strlen(err.msg) > 0);
        cr_assert_eq(memcmp(&d, &before, sizeof d), 0, "case %zu wrote its output", i);
    }
}

static void check_valid(const lvr_device_preset *d)
{
    cr_assert(d->has_flash && strlen(d->name) > 0);
    cr_assert_eq(lvr_flash_params_check(&d->flash, NULL), LVR_OK);
}

/* Every prefix, every byte changed, and random bytes: refused, or a description that makes sense. */
Test(flash_device, damage_never_gets_through)
{
    lvr_device_preset d;
    const size_t n = strlen(good);
    for (size_t len = 0; len < n; len++)
        if (lvr_device_load_mem("test.yaml", good, len, &d, NULL) == LVR_OK)
            check_valid(&d);
    lvr_rng rng;
    lvr_rng_init(&rng, 7, "flash-device-test");
    char text[sizeof good];
    for (int round = 0; round < 20000; round++) {
        memcpy(text, good, sizeof good);
        for (uint64_t k = 1 + lvr_rng_below(&rng, 4); k-- > 0;)
            text[lvr_rng_below(&rng, n)] = (char)lvr_rng_below(&rng, 256);
        if (lvr_device_load_mem("test.yaml", text, n, &d, NULL) == LVR_OK)
            check_valid(&d);
    }
}
