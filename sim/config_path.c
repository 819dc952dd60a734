#include "sim/config_path.h"

#include "common/param.h"
#include "lvr_config.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_NAMES = 256 };

static bool ends_with(const char *text, const char *suffix)
{
    const size_t n = strlen(text), k = strlen(suffix);
    return n > k && strcmp(text + n - k, suffix) == 0;
}

static bool is_path(const char *name)
{
    return strchr(name, '/') || ends_with(name, ".yaml") || ends_with(name, ".json") ||
           access(name, F_OK) == 0;
}

static const char *first_dir(void)
{
    const char *chosen = getenv("LVR_CONFIG_DIR");
    return chosen && *chosen ? chosen : LVR_CONFIG_DIR;
}

static size_t list_names(const char *dir, char *names[MAX_NAMES])
{
    size_t n = 0;
    DIR *d = opendir(dir);
    if (!d)
        return 0;
    for (const struct dirent *e; (e = readdir(d)) && n < MAX_NAMES;) {
        char *name =
            ends_with(e->d_name, ".yaml") ? strndup(e->d_name, strlen(e->d_name) - strlen(".yaml")) : NULL;
        if (name)
            names[n++] = name;
    }
    closedir(d);
    return n;
}

static int by_text(const void *a, const void *b)
{
    const char *const *x = a, *const *y = b;
    return strcmp(*x, *y);
}

static lvr_status fail_unknown(const char *kind, const char *name, lvr_error *err)
{
    char *names[MAX_NAMES];
    lvr_buf dir = LVR_BUF_INIT, list = LVR_BUF_INIT;
    lvr_buf_printf(&dir, "%s/%s", first_dir(), kind);
    const size_t n = dir.failed ? 0 : list_names(dir.data, names);
    qsort(names, n, sizeof names[0], by_text);
    const char *near = lvr_closest_name(name, (const char *const *)names, n);
    if (near)
        lvr_buf_printf(&list, "; did you mean %s?", near);
    lvr_buf_puts(&list, n ? " Known:" : "; nothing of this kind was found");
    for (size_t i = 0; i < n; i++)
        lvr_buf_printf(&list, "%s %s", i ? "," : "", names[i]);
    const lvr_status st = lvr_fail(err, LVR_ERR_CONFIG,
                                   "%s: unknown name \"%.64s\"%s (in %s; set LVR_CONFIG_DIR to look "
                                   "elsewhere, or give the path of a .yaml "
                                   "file)",
                                   kind, name, list.failed ? "" : list.data, dir.failed ? "" : dir.data);
    for (size_t i = 0; i < n; i++)
        free(names[i]);
    lvr_buf_free(&dir);
    lvr_buf_free(&list);
    return st;
}

static bool try_dir(const char *dir, const char *kind, const char *name, lvr_buf *path)
{
    lvr_buf_free(path);
    lvr_buf_printf(path, "%s/%s/%s.yaml", dir, kind, name);
    return !path->failed && access(path->data, F_OK) == 0;
}

lvr_status lvr_sim_config_path(const char *kind, const char *name, lvr_buf *ret_path, lvr_error *err)
{
    lvr_buf path = LVR_BUF_INIT;
    const char *chosen = getenv("LVR_CONFIG_DIR");
    bool found = is_path(name);
    if (found)
        lvr_buf_puts(&path, name);
    if (!found)
        found = try_dir(first_dir(), kind, name, &path);
    if (!found && !(chosen && *chosen))
        found = try_dir(LVR_CONFIG_DIR_INSTALLED, kind, name, &path);
    if (found && !path.failed) {
        *ret_path = path;
        return LVR_OK;
    }
    const bool failed = path.failed;
    lvr_buf_free(&path);
    return failed ? lvr_fail(err, LVR_ERR_NOMEM, "%s: out of memory", name) : fail_unknown(kind, name, err);
}
