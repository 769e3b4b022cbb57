// What the host passes to the kernel; launch.py holds the same fields in the same order.
#pragma once
#include <stdint.h>

// Strides are in elements. Keys are read through their tensor map alone.
struct Params {
  const void* q;
  const void* v_pool;
  const int32_t* page_table;
  const int32_t* cu_nodes;
  const int32_t* prefix_len;
  const uint64_t* ancestors;
  void* out;
  float* lse;  // or null
  float* partial;
  float* partial_lse;
  int64_t q_row, q_head;
  int64_t v_page, v_slot, v_head;
  int64_t table_request, table_entry;
  int64_t cu_stride, prefix_stride;
  int64_t words_row, words_word;
  int64_t out_row, out_head;
  int64_t lse_row, lse_head;
  int32_t rows, requests, heads, group;
  int32_t kv_heads;
  // Programs of a cluster, which share one tile and put their results together; 0: a request has as
  // many pieces as its length asks for, put together by another kernel.
  int32_t cluster;
  int32_t page;      // rows of a page
  int32_t box;       // rows that one bulk copy brings
  int32_t words;     // ancestor words of a row
  // Of group, kv_heads, page and cluster: see divided().
  uint32_t group_inverse, kv_heads_inverse, page_inverse, cluster_inverse;
  uint32_t q_keep;   // and-ed to two values of q: 0 where the scale is 0
  uint32_t q_flip;   // then xor-ed: the sign of the scale
  float factor;      // of the scores, positive, in powers of two
  int32_t q_nodes;   // whose queries one bulk copy brings, 64 / group; 0: threads load them
#ifdef KERNEL_CLOCK
  uint64_t* stamps;  // [programs, PHASES]: see clock.cuh
#endif
};

// CUtensorMap of cuda.h, which is opaque.
struct alignas(64) TensorMap {
  uint8_t bytes[128];
};
