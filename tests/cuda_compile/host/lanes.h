// The 32 lanes of a warp on one thread of the host: each has a stack of its own, and at a barrier the next one goes on.
#pragma once
#include <ucontext.h>

#include <cstring>
#include <vector>

namespace ark::device {

struct Lanes {
  static constexpr int kCount = 32;
  ucontext_t caller, of[kCount];
  std::vector<std::vector<unsigned char>> stacks;
  int own = 0, running = 0;
  bool ended[kCount];
  unsigned char exchanged[kCount][256];

  void (*body)(void*, int) = nullptr;
  void* argument = nullptr;

  template <class F>
  void run(F&& f) {
    body = [](void* of_all, int lane) { (*static_cast<F*>(of_all))(lane); };
    argument = &f;
    stacks.resize(kCount, std::vector<unsigned char>(256 << 10));
    running = kCount;
    for (int i = 0; i < kCount; ++i) {
      ended[i] = false;
      getcontext(&of[i]);
      of[i].uc_stack.ss_sp = stacks[i].data();
      of[i].uc_stack.ss_size = stacks[i].size();
      of[i].uc_link = nullptr;
      makecontext(&of[i], reinterpret_cast<void (*)()>(&start), 0);
    }
    own = 0;
    swapcontext(&caller, &of[0]);
  }
  /// All others come here, or end, before this lane goes on.
  void meet() {
    const int from = own;
    if (next()) swapcontext(&of[from], &of[own]);
  }
  template <class T>
  T shuffle_xor(const T& value, int mask) {
    static_assert(sizeof(T) <= sizeof(exchanged[0]));
    std::memcpy(exchanged[own], &value, sizeof(T));
    meet();
    T out;
    std::memcpy(&out, exchanged[own ^ mask], sizeof(T));
    meet();
    return out;
  }

 private:
  static void start();
  /// Whether another lane's turn has come.
  bool next() {
    const int from = own;
    do own = (own + 1) % kCount;
    while (ended[own] && own != from);
    return own != from;
  }
  friend void end_lane(Lanes&);
};

inline Lanes lanes;

inline void end_lane(Lanes& all) {
  all.ended[all.own] = true;
  if (--all.running == 0) setcontext(&all.caller);
  all.next();
  setcontext(&all.of[all.own]);
}
inline void Lanes::start() {
  lanes.body(lanes.argument, lanes.own);
  end_lane(lanes);
}

}  // namespace ark::device
