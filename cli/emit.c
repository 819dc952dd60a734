#include "cli/emit.h"

#include "common/fs.h"
#include <errno.h>
#include <stdio.h>

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

lvr_status lvr_emit_help(const char *usage, const lvr_param *table, size_t n, lvr_error *err)
{
    lvr_buf out = LVR_BUF_INIT;
    lvr_buf_puts(&out, usage);
    lvr_options_help(table, n, &out);
    return lvr_emit(NULL, &out, err);
}
