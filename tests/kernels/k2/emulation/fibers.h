// Threads of the programs of a cluster as fibers of one CPU thread: they run in an order drawn at
// random, until they wait for something. Nobody able to go on is a hang, and is reported.
#pragma once
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

struct Index {
  unsigned x;
};
inline Index threadIdx, blockIdx, gridDim;

namespace fibers {

struct Fault : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Fiber {
  ucontext_t context;
  std::unique_ptr<char[]> stack;
  bool done = false;
  // What it waits for, if anything.
  bool (*ready)(void*) = nullptr;
  void* condition = nullptr;
};

constexpr size_t STACK = 96 << 10;
inline std::vector<Fiber> all;
inline int current;          // of them
inline int threads = 1;      // of a program
inline int first_program;    // of the cluster
inline ucontext_t scheduler;
inline std::function<void()> body;
inline std::function<bool()> background;  // does a piece of what runs beside the threads, if any
inline std::mt19937 chance;
inline long progress;
inline std::string fault;

inline void entry() {
  try {
    body();
  } catch (const Fault& error) {
    fault = error.what();
  }
  all[current].done = true;
  swapcontext(&all[current].context, &scheduler);
}

// Lets others run; the caller tests its condition again afterwards.
inline void yield() {
  const int me = current;
  swapcontext(&all[me].context, &scheduler);
  if (!fault.empty()) throw Fault(fault);
}

// Takes some time.
inline void linger() {
  for (int left = chance() % 32; left > 0; --left) {
    ++progress;
    yield();
  }
}

// Returns once the condition holds, which whoever resumes this thread tests: a change of threads
// takes far longer.
template <class Condition>
void wait(Condition condition) {
  if (condition()) return;
  Fiber& mine = all[current];
  mine.condition = &condition;
  mine.ready = [](void* tested) { return (*static_cast<Condition*>(tested))(); };
  yield();
  mine.ready = nullptr;
}

inline void resume(int fiber) {
  const Fiber& its = all[fiber];
  if (its.ready && fault.empty() && !its.ready(its.condition)) return;
  current = fiber;
  threadIdx.x = fiber % threads;
  blockIdx.x = first_program + fiber / threads;
  swapcontext(&scheduler, &all[fiber].context);
}

inline void run(int count) {
  if (all.size() < size_t(count)) all.resize(count);
  fault.clear();
  progress = 0;
  const unsigned hurry = chance() % 5;
  std::vector<int> order;
  for (int i = 0; i < count; ++i) {
    // Not initialised: most of it is never touched.
    if (!all[i].stack) all[i].stack.reset(new char[STACK]);
    all[i].done = false;
    all[i].ready = nullptr;
    getcontext(&all[i].context);
    all[i].context.uc_stack.ss_sp = all[i].stack.get();
    all[i].context.uc_stack.ss_size = STACK;
    makecontext(&all[i].context, entry, 0);
    order.push_back(i);
  }
  while (!order.empty()) {
    const long before = progress;
    std::shuffle(order.begin(), order.end(), chance);
    for (int i : order) resume(i);
    const size_t running = order.size();
    order.erase(std::remove_if(order.begin(), order.end(), [](int i) { return all[i].done; }),
                order.end());
    const bool moved = progress != before || order.size() != running;
    // Copies arrive at once in some runs, in others as late as can be.
    bool copied = false;
    while (chance() % 4 < hurry && background()) copied = true;
    if (!moved && !copied && !background() && fault.empty()) {
      fault = "all threads wait for each other";
    }
  }
}

// Every thread of a set comes before one goes on.
struct Meeting {
  int size = 32, arrived = 0;
  long round = 0;
  void arrive() {
    ++progress;
    if (++arrived == size) {
      arrived = 0;
      ++round;
    }
  }
  void join() {
    const long mine = round;
    arrive();
    wait([&] { return round != mine; });
  }
};

}  // namespace fibers
