// One tile of scores in the registers of a warpgroup: masked, folded into the running softmax, and
// packed as the left side of the next multiplication.
//
// A thread holds two rows of a tile, 8 apart: of each 8 columns, two neighbours of both rows.
#pragma once
#include "wgmma.cuh"
#include "worklist.cuh"

// The two rows of a thread: their ancestor words, and where they belong.
struct Rows {
  const uint64_t* words[2];  // null past the last row of the tree
  float peak[2];             // largest score so far, in powers of two
  float total[2];            // this thread's share of the sum of weights
};

INLINE uint64_t word_at(const Params& p, const uint64_t* words, int index) {
  if (words == nullptr || index >= p.words) return 0;
  return index < 0 ? ~0ull : __ldg(words + index * p.words_word);
}

// Which columns of a tile the two rows of a thread see, shifted to the thread's first column.
template <int WORDS>
struct Seen {
  uint64_t of[2][WORDS];
};

template <int WORDS>
INLINE Seen<WORDS> seen_in(const Params& p, const Item& item, const Rows& rows, int start) {
  Seen<WORDS> seen;
#pragma unroll
  for (int word = 0; word < WORDS; ++word) {
    const int column = start + 64 * word;
    const int index = word_of(column, item.prefix);
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      seen.of[row][word] =
          visible(column, item.end, item.prefix, word_at(p, rows.words[row], index),
                  word_at(p, rows.words[row], index + 1)) >> (threadIdx.x % 4 * 2);
    }
  }
  return seen;
}

// Scores of columns that a row does not see become -inf.
template <int COUNT>
INLINE void mask_scores(const Seen<COUNT / 32>& seen, float (&scores)[COUNT]) {
#pragma unroll
  for (int i = 0; i < COUNT; ++i) {
    const int column = i / 4 * 8 + i % 2;
    const uint64_t word = seen.of[i / 2 % 2][column / 64];
    const uint32_t half = uint32_t(column % 64 < 32 ? word : word >> 32);
    scores[i] = half >> column % 32 & 1 ? scores[i] : -INFINITY;
  }
}

// Scores become weights; ``shrink`` is what all that was summed before must be multiplied by.
template <int COUNT>
INLINE void fold_scores(float factor, Rows& rows, float (&scores)[COUNT], float (&shrink)[2]) {
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    float most = -INFINITY;
#pragma unroll
    for (int i = 2 * row; i < COUNT; i += 4) most = fmaxf(most, fmaxf(scores[i], scores[i + 1]));
    most = fmaxf(most, __shfl_xor_sync(0xffffffff, most, 1));
    most = fmaxf(most, __shfl_xor_sync(0xffffffff, most, 2));
    const float peak = fmaxf(rows.peak[row], most * factor);
    // A row that has seen nothing yet: inf - inf would be NaN.
    const float base = peak == -INFINITY ? 0.0f : peak;
    shrink[row] = exp2_fast(rows.peak[row] - base);
    rows.peak[row] = peak;
    float sum = 0.0f;
#pragma unroll
    for (int i = 2 * row; i < COUNT; i += 4) {
      scores[i] = exp2_fast(fmaf(scores[i], factor, -base));
      scores[i + 1] = exp2_fast(fmaf(scores[i + 1], factor, -base));
      sum += scores[i] + scores[i + 1];
    }
    rows.total[row] = fmaf(rows.total[row], shrink[row], sum);
  }
}

template <int COUNT>
INLINE void shrink_sums(float (&sums)[COUNT], const float (&shrink)[2]) {
#pragma unroll
  for (int i = 0; i < COUNT; ++i) sums[i] *= shrink[i / 2 % 2];
}

// Each lane of four has two values of every one of four groups of eight; then each has all eight
// values of the group of its number.
INLINE uint4 regroup(const uint32_t (&pairs)[4]) {
  uint32_t mine[4] = {pairs[0], pairs[1], pairs[2], pairs[3]};
#pragma unroll
  for (int step = 1; step < 4; step *= 2) {
    const bool upper = threadIdx.x & step;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i & step) continue;
      const uint32_t got = __shfl_xor_sync(0xffffffff, upper ? mine[i] : mine[i + step], step);
      if (upper) mine[i] = got; else mine[i + step] = got;
    }
  }
  return make_uint4(mine[0], mine[1], mine[2], mine[3]);
}

// Sums of 16 x 8 columns become inputs of 16 columns: both lay rows and columns out alike.
template <class Element, int COUNT>
INLINE void pack_weights(const float (&weights)[COUNT], uint32_t (&packed)[COUNT / 2]) {
#pragma unroll
  for (int i = 0; i < COUNT / 2; ++i) {
    packed[i] = Element::pack(weights[2 * i], weights[2 * i + 1]);
  }
}
