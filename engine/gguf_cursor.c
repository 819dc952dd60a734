/* The parser's position in the header: what is read, checked lengths, messages. */
#include "common/fs.h"
#include "engine/gguf_internal.h"
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_HEADER_BYTES (256ull << 20)
#define FIRST_READ_BYTES (64ull << 10)

void lvr_gguf_parsing(lvr_gguf_parser *p, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    vsnprintf(p->context, sizeof(p->context), fmt, args);
    va_end(args);
}

lvr_status lvr_gguf_parse_fail(lvr_gguf_parser *p, lvr_status status, const char *fmt, ...)
{
    char text[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    return lvr_fail(p->err, status, "%s: %s: %s", p->g->path, p->context, text);
}

lvr_status lvr_gguf_no_memory(lvr_gguf_parser *p)
{
    return lvr_gguf_parse_fail(p, LVR_ERR_NOMEM, "out of memory");
}

static lvr_status fill(lvr_gguf_parser *p, uint64_t upto)
{
    lvr_gguf *g = p->g;
    if (upto > p->cap) {
        uint8_t *grown = realloc(g->header, upto);
        if (grown == NULL)
            return lvr_gguf_no_memory(p);
        g->header = grown;
        p->cap = upto;
    }
    if (p->mem != NULL) {
        memcpy(g->header + p->have, p->mem + p->have, upto - p->have);
    } else {
        const lvr_status status =
            lvr_pread_all(g->parts[0].fd, g->header + p->have, upto - p->have, p->have, g->path, p->err);
        if (status != LVR_OK)
            return status;
    }
    p->have = upto;
    return LVR_OK;
}

lvr_status lvr_gguf_need(lvr_gguf_parser *p, uint64_t n)
{
    if (n > p->readable - p->pos)
        return lvr_gguf_parse_fail(p, LVR_ERR_FORMAT,
                                   "the file ends at byte %" PRIu64 ", but %" PRIu64
                                   " bytes are needed at byte %" PRIu64 ": it is truncated (at least %" PRIu64
                                   " bytes are missing) or damaged; copy or download it again",
                                   p->readable, n, p->pos, n - (p->readable - p->pos));
    const uint64_t end = p->pos + n;
    if (end <= p->have)
        return LVR_OK;
    if (end > MAX_HEADER_BYTES)
        return lvr_gguf_parse_fail(p, LVR_ERR_FORMAT,
                                   "the header is larger than %llu MiB: the file is damaged",
                                   MAX_HEADER_BYTES >> 20);
    uint64_t upto = p->have * 2 > FIRST_READ_BYTES ? p->have * 2 : FIRST_READ_BYTES;
    upto = upto < MAX_HEADER_BYTES ? upto : MAX_HEADER_BYTES;
    upto = upto > end ? upto : end;
    return fill(p, upto < p->readable ? upto : p->readable);
}

lvr_status lvr_gguf_take(lvr_gguf_parser *p, void *ret, uint64_t n)
{
    const lvr_status status = lvr_gguf_need(p, n);
    if (status != LVR_OK)
        return status;
    memcpy(ret, p->g->header + p->pos, n);
    p->pos += n;
    return LVR_OK;
}

lvr_status lvr_gguf_take_u32(lvr_gguf_parser *p, uint32_t *ret)
{
    return lvr_gguf_take(p, ret, sizeof(*ret));
}

lvr_status lvr_gguf_take_u64(lvr_gguf_parser *p, uint64_t *ret)
{
    return lvr_gguf_take(p, ret, sizeof(*ret));
}

lvr_status lvr_gguf_take_str(lvr_gguf_parser *p, uint64_t max, uint64_t *ret_pos, uint64_t *ret_n)
{
    uint64_t n = 0;
    lvr_status status = lvr_gguf_take_u64(p, &n);
    if (status != LVR_OK)
        return status;
    if (n > max)
        return lvr_gguf_parse_fail(p, LVR_ERR_FORMAT,
                                   "a string of %" PRIu64 " bytes at byte %" PRIu64 " (at most %" PRIu64
                                   " allowed): the file is damaged",
                                   n, p->pos - 8, max);
    status = lvr_gguf_need(p, n);
    if (status != LVR_OK)
        return status;
    *ret_pos = p->pos;
    *ret_n = n;
    p->pos += n;
    return LVR_OK;
}

lvr_status lvr_gguf_take_name(lvr_gguf_parser *p, uint64_t max, char **ret)
{
    uint64_t pos = 0, n = 0;
    const lvr_status status = lvr_gguf_take_str(p, max, &pos, &n);
    if (status != LVR_OK)
        return status;
    if (n == 0)
        return lvr_gguf_parse_fail(p, LVR_ERR_FORMAT, "an empty name at byte %" PRIu64, pos);
    const uint8_t *bytes = p->g->header + pos;
    for (uint64_t i = 0; i < n; i++)
        if (bytes[i] < 0x21 || bytes[i] > 0x7e)
            return lvr_gguf_parse_fail(
                p, LVR_ERR_FORMAT,
                "byte %" PRIu64 " of the name is 0x%02x (expected printable ASCII): the file is damaged", i,
                bytes[i]);
    char *name = malloc(n + 1);
    if (name == NULL)
        return lvr_gguf_no_memory(p);
    memcpy(name, bytes, n);
    name[n] = '\0';
    *ret = name;
    return LVR_OK;
}
