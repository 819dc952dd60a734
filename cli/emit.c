#include "cli/emit.h"

#include "common/fs.h"
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

lvr_status lvr_emit(const char *path, lvr_buf *out, lvr_error *err)
{
    lvr_status st = LVR_OK;
    if (out->failed)
        st = lvr_fail(err, LVR_ERR_NOMEM, "out of memory for the result");
    else if (path)
        st = lvr_write_file_atomic(path, out->data, out->len, err);
    else if (out->len > 0 && (fwrite(out->data, 1, out->len, stdout) != out->len || fflush(stdout) != 0))
        st = lvr_fail_errno(err, errno, "standard output: cannot write the result");
    lvr_buf_free(out);
    return st;
}

lvr_status lvr_emit_check(const char *path, lvr_error *err)
{
    return path ? lvr_check_writable(path, err) : LVR_OK;
}

static bool stat_input(const char *path, struct stat *ret)
{
    return path && (strcmp(path, "-") == 0 ? fstat(STDIN_FILENO, ret) : stat(path, ret)) == 0;
}

lvr_status lvr_emit_check_inputs(const char *path, const char *const *inputs, size_t n, lvr_error *err)
{
    struct stat out, in;
    if (path && stat(path, &out) == 0 && S_ISREG(out.st_mode))
        for (size_t i = 0; i < n; i++)
            if (stat_input(inputs[i], &in) && in.st_dev == out.st_dev && in.st_ino == out.st_ino)
                return lvr_fail(err, LVR_ERR_USAGE,
                                "%s is an input of this command (%s), and writing would replace it; name "
                                "another file",
                                path, strcmp(inputs[i], "-") == 0 ? "standard input" : inputs[i]);
    return lvr_emit_check(path, err);
}

lvr_status lvr_emit_help(const char *usage, const lvr_param *table, size_t n, lvr_error *err)
{
    lvr_buf out = LVR_BUF_INIT;
    lvr_buf_puts(&out, usage);
    lvr_options_help(table, n, &out);
    return lvr_emit(NULL, &out, err);
}
