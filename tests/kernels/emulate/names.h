/* The kernels' names of types and intrinsics, given to the model. The compiler's header has been included
 * before, so that its own uses of them are not touched. */
#ifndef LVR_TESTS_KERNELS_EMULATE_NAMES_H
#define LVR_TESTS_KERNELS_EMULATE_NAMES_H

#define __m512 emu_ps
#define __m512i emu_i
#define __m512d emu_pd

#undef _mm512_add_epi32
#define _mm512_add_epi32 emu_add_epi32
#undef _mm512_add_ps
#define _mm512_add_ps emu_add_ps
#undef _mm512_and_si512
#define _mm512_and_si512 emu_and_si512
#undef _mm512_castps512_ps256
#define _mm512_castps512_ps256 emu_castps512_ps256
#undef _mm512_castps_pd
#define _mm512_castps_pd emu_castps_pd
#undef _mm512_castps_si512
#define _mm512_castps_si512 emu_castps_si512
#undef _mm512_castsi512_ps
#define _mm512_castsi512_ps emu_castsi512_ps
#undef _mm512_castsi512_si256
#define _mm512_castsi512_si256 emu_castsi512_si256
#undef _mm512_cmp_ps_mask
#define _mm512_cmp_ps_mask emu_cmp_ps_mask
#undef _mm512_cvtepi16_epi32
#define _mm512_cvtepi16_epi32 emu_cvtepi16_epi32
#undef _mm512_cvtepi32_ps
#define _mm512_cvtepi32_ps emu_cvtepi32_ps
#undef _mm512_cvtepi8_epi32
#define _mm512_cvtepi8_epi32 emu_cvtepi8_epi32
#undef _mm512_cvtepu16_epi32
#define _mm512_cvtepu16_epi32 emu_cvtepu16_epi32
#undef _mm512_cvtepu8_epi32
#define _mm512_cvtepu8_epi32 emu_cvtepu8_epi32
#undef _mm512_cvtph_ps
#define _mm512_cvtph_ps emu_cvtph_ps
#undef _mm512_cvtps_epi32
#define _mm512_cvtps_epi32 emu_cvtps_epi32
#undef _mm512_cvtsepi32_epi8
#define _mm512_cvtsepi32_epi8 emu_cvtsepi32_epi8
#undef _mm512_div_ps
#define _mm512_div_ps emu_div_ps
#undef _mm512_dpbusd_epi32
#define _mm512_dpbusd_epi32 emu_dpbusd_epi32
#undef _mm512_extractf64x4_pd
#define _mm512_extractf64x4_pd emu_extractf64x4_pd
#undef _mm512_extracti64x4_epi64
#define _mm512_extracti64x4_epi64 emu_extracti64x4_epi64
#undef _mm512_fmadd_ps
#define _mm512_fmadd_ps emu_fmadd_ps
#undef _mm512_fnmadd_ps
#define _mm512_fnmadd_ps emu_fnmadd_ps
#undef _mm512_load_ps
#define _mm512_load_ps emu_load_ps
#undef _mm512_load_si512
#define _mm512_load_si512 emu_load_si512
#undef _mm512_loadu_ps
#define _mm512_loadu_ps emu_loadu_ps
#undef _mm512_loadu_si512
#define _mm512_loadu_si512 emu_loadu_si512
#undef _mm512_mask_add_ps
#define _mm512_mask_add_ps emu_mask_add_ps
#undef _mm512_mask_mov_ps
#define _mm512_mask_mov_ps emu_mask_mov_ps
#undef _mm512_mask_storeu_ps
#define _mm512_mask_storeu_ps emu_mask_storeu_ps
#undef _mm512_maskz_loadu_ps
#define _mm512_maskz_loadu_ps emu_maskz_loadu_ps
#undef _mm512_max_epi32
#define _mm512_max_epi32 emu_max_epi32
#undef _mm512_max_ps
#define _mm512_max_ps emu_max_ps
#undef _mm512_min_ps
#define _mm512_min_ps emu_min_ps
#undef _mm512_mul_ps
#define _mm512_mul_ps emu_mul_ps
#undef _mm512_mullo_epi32
#define _mm512_mullo_epi32 emu_mullo_epi32
#undef _mm512_or_si512
#define _mm512_or_si512 emu_or_si512
#undef _mm512_permutexvar_epi32
#define _mm512_permutexvar_epi32 emu_permutexvar_epi32
#undef _mm512_set1_epi32
#define _mm512_set1_epi32 emu_set1_epi32
#undef _mm512_set1_epi8
#define _mm512_set1_epi8 emu_set1_epi8
#undef _mm512_set1_ps
#define _mm512_set1_ps emu_set1_ps
#undef _mm512_setzero_ps
#define _mm512_setzero_ps emu_setzero_ps
#undef _mm512_setzero_si512
#define _mm512_setzero_si512 emu_setzero_si512
#undef _mm512_setr_epi32
#define _mm512_setr_epi32 emu_setr_epi32
#undef _mm512_slli_epi16
#define _mm512_slli_epi16 emu_slli_epi16
#undef _mm512_slli_epi32
#define _mm512_slli_epi32 emu_slli_epi32
#undef _mm512_srai_epi32
#define _mm512_srai_epi32 emu_srai_epi32
#undef _mm512_srli_epi16
#define _mm512_srli_epi16 emu_srli_epi16
#undef _mm512_srli_epi32
#define _mm512_srli_epi32 emu_srli_epi32
#undef _mm512_store_ps
#define _mm512_store_ps emu_store_ps
#undef _mm512_store_si512
#define _mm512_store_si512 emu_store_si512
#undef _mm512_storeu_ps
#define _mm512_storeu_ps emu_storeu_ps
#undef _mm512_sub_epi32
#define _mm512_sub_epi32 emu_sub_epi32
#undef _mm512_sub_epi8
#define _mm512_sub_epi8 emu_sub_epi8
#undef _mm512_sub_ps
#define _mm512_sub_ps emu_sub_ps
#undef _mm512_xor_si512
#define _mm512_xor_si512 emu_xor_si512

#undef _mm256_maskz_loadu_epi32
#define _mm256_maskz_loadu_epi32 emu256_maskz_loadu_epi32
#undef _mm256_maskz_loadu_ps
#define _mm256_maskz_loadu_ps emu256_maskz_loadu_ps

#undef _tile_dpbssd
#define _tile_dpbssd emu_tile_dpbssd
#undef _tile_loadconfig
#define _tile_loadconfig emu_tile_loadconfig
#undef _tile_loadd
#define _tile_loadd emu_tile_loadd
#undef _tile_release
#define _tile_release emu_tile_release
#undef _tile_stored
#define _tile_stored emu_tile_stored
#undef _tile_zero
#define _tile_zero emu_tile_zero

#endif
