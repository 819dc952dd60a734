/*
 * Opening a model by any of its two forms. A GGUF is packed on first use into the cache directory:
 * $LVR_CACHE_DIR, else $XDG_CACHE_HOME/lever, else ~/.cache/lever, as <sha256>-v<layout>.lvrpack. Hashes are
 * remembered by (path, size, mtime, inode) in `hashes.txt` there, so a start does not read gigabytes only to
 * name them.
 */
#ifndef LVR_ENGINE_PACK_CACHE_H
#define LVR_ENGINE_PACK_CACHE_H

#include "engine/pack.h"

/* `path` is a GGUF (any part of a split one) or a pack, told apart by its first bytes. Packing and hashing
 * are announced through lvr_log. */
lvr_status lvr_pack_open_any(const char *path, lvr_pack **ret, lvr_error *err);
/* As above; options (may be NULL) say how to pack if that is needed. */
lvr_status lvr_pack_open_any_with(const char *path, const lvr_pack_options *options, lvr_pack **ret,
                                  lvr_error *err);

/* What to do about a damaged pack: one in the cache is made again once it is deleted. A literal. */
const char *lvr_pack_remedy(const char *path);

/* Hashes and packs the GGUF at `path` (any part of a split one) into `out`; a GGUF that changes meanwhile, or
 * is `out` itself, is LVR_ERR_IO. options may be NULL. */
lvr_status lvr_pack_from_gguf(const char *path, const char *out, const lvr_pack_options *options,
                              lvr_error *err);

#endif
