/* What writing (pack_write.c) and opening (pack.c) a pack share: its plan and the file's structs. */
#ifndef LVR_ENGINE_PACK_INTERNAL_H
#define LVR_ENGINE_PACK_INTERNAL_H

#include "common/buf.h"
#include "engine/pack.h"
#include <stddef.h>

#define LVR_PACK_MAGIC "LVRPACK"
#define LVR_PACK_RESIDENT 0u /* index of the resident section; layer l is section 1 + l */

typedef struct lvr_pack_file_header {
    char magic[8];
    uint32_t file_version, layout_version;
    uint32_t header_bytes, n_sections, n_tensors, reserved0;
    uint64_t file_bytes, source_bytes;
    uint64_t gguf_offset, gguf_bytes;
    uint64_t tables_offset, tables_bytes;
    uint32_t gguf_crc, tables_crc;
    char source_sha256[64];
    uint8_t reserved[LVR_PACK_ALIGN - 156];
    uint32_t header_crc; /* of all bytes before it */
} lvr_pack_file_header;
_Static_assert(sizeof(lvr_pack_file_header) == LVR_PACK_ALIGN, "the header is one block");
_Static_assert(offsetof(lvr_pack_file_header, header_crc) == LVR_PACK_ALIGN - 4,
               "the checksum ends the header");

typedef struct lvr_pack_file_section {
    uint64_t offset, bytes;
    uint32_t crc, first_tensor, n_tensors, reserved;
} lvr_pack_file_section;
_Static_assert(sizeof(lvr_pack_file_section) == 32, "no padding");

typedef struct lvr_pack_file_tensor {
    uint32_t role, type, n_out, n_in;
    uint64_t offset, bytes;
} lvr_pack_file_tensor;
_Static_assert(sizeof(lvr_pack_file_tensor) == 32, "no padding");

typedef struct lvr_pack_section {
    uint64_t offset, bytes;
    uint32_t crc, first_tensor, n_tensors;
} lvr_pack_section;

/* What a pack contains follows from the GGUF header inside it. Writing follows the plan; opening recomputes
 * it and demands that the file says exactly the same, so that no offset or size of a hostile file is ever
 * used. */
typedef struct lvr_pack_plan {
    lvr_model_shape shape;
    uint64_t gguf_bytes, tables_offset, tables_bytes, file_bytes;
    lvr_pack_section *sections; /* resident, then one a layer */
    uint32_t n_sections;
    lvr_pack_tensor *tensors;
    uint32_t n_tensors;
} lvr_pack_plan;

lvr_status lvr_pack_plan_make(const lvr_gguf *g, lvr_pack_plan *ret, lvr_error *err);
void lvr_pack_plan_free(lvr_pack_plan *p);
/* Section table and tensor table as they are in the file. */
void lvr_pack_put_tables(const lvr_pack_plan *p, lvr_buf *out);

static inline uint64_t lvr_pack_align_up(uint64_t n, uint64_t align)
{
    return (n + align - 1) / align * align;
}

bool lvr_pack_is_sha256_hex(const char *s);

/* Whether one of the values, or of the scales of blocks, of GGUF rows is infinite or no number; then *ret_at
 * is the index of the first such value, or of its block's first value, counted from the first row's. */
bool lvr_pack_find_not_finite(lvr_wtype type, const void *rows, uint64_t bytes, uint64_t *ret_at);

#endif
