/* Checksums: SHA-256 (FIPS 180-4) for identities, CRC-32C (RFC 3720, appendix B.4) for blocks. Streaming, no
 * allocation. */
#ifndef LVR_COMMON_HASH_H
#define LVR_COMMON_HASH_H

#include "common/error.h"
#include <stddef.h>
#include <stdint.h>

typedef struct lvr_sha256 {
    uint32_t h[8];
    uint64_t n_bytes;
    uint8_t block[64];
} lvr_sha256;

#define LVR_SHA256_HEX_BYTES 65

void lvr_sha256_init(lvr_sha256 *s);
void lvr_sha256_update(lvr_sha256 *s, const void *data, size_t n);
void lvr_sha256_hex(lvr_sha256 *s, char ret_hex[LVR_SHA256_HEX_BYTES]); /* finishes the hash */
void lvr_sha256_mem_hex(const void *data, size_t n, char ret_hex[LVR_SHA256_HEX_BYTES]);
lvr_status lvr_sha256_file_hex(const char *path, char ret_hex[LVR_SHA256_HEX_BYTES], lvr_error *err);

uint32_t lvr_crc32c(uint32_t crc, const void *data, size_t n); /* start with crc = 0 */
/* CRC of a followed by b, from the CRCs of both (each started with 0) and the length of b. */
uint32_t lvr_crc32c_combine(uint32_t crc_a, uint32_t crc_b, uint64_t len_b);

#endif
