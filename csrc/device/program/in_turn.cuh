// Long functions of the elements of a vector, two after the other two: their code is there twice, not once an element.
// What a token runs once or twice is fetched anew for it, which takes longer than running it.
#pragma once
#include "device/ptx/ptx.cuh"

namespace ark::device::op {

/// out[i] = f(in[i])
template <int V, class F>
ARK_DEVICE void in_turn(const float (&in)[V], float (&out)[V], const F& f) {
  constexpr int kTogether = V % 2 == 0 ? 2 : 1;
  float x[V];
#pragma unroll
  for (int i = 0; i < V; ++i) x[i] = in[i];
#pragma unroll 1
  for (int n = 0; n < V; n += kTogether) {
    float y[kTogether];
#pragma unroll
    for (int i = 0; i < kTogether; ++i) y[i] = f(x[i]);
#pragma unroll
    for (int i = 0; i + kTogether < V; ++i) x[i] = x[i + kTogether];
#pragma unroll
    for (int i = 0; i < kTogether; ++i) x[V - kTogether + i] = y[i];
  }
#pragma unroll
  for (int i = 0; i < V; ++i) out[i] = x[i];
}

}  // namespace ark::device::op
