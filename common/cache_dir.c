#include "common/cache_dir.h"

#include <stdio.h>
#include <stdlib.h>

lvr_status lvr_cache_dir(char **ret, lvr_error *err)
{
    const char *own = getenv("LVR_CACHE_DIR"), *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    char *dir = NULL;
    int n = -1;
    if (own && own[0] != '\0')
        n = asprintf(&dir, "%s", own);
    else if (xdg && xdg[0] == '/') /* the XDG specification ignores relative paths */
        n = asprintf(&dir, "%s/lever", xdg);
    else if (home && home[0] == '/')
        n = asprintf(&dir, "%s/.cache/lever", home);
    else
        return lvr_fail(err, LVR_ERR_CONFIG,
                        "no place for packed models and calibrations: set LVR_CACHE_DIR to a folder");
    if (n < 0)
        return lvr_fail(err, LVR_ERR_NOMEM, "out of memory");
    *ret = dir;
    return LVR_OK;
}
