// SPDX-License-Identifier: Apache-2.0
// One tally, many threads: they add, merge, decode and read it at once; and calls that share their helpers. Compiled
// under ThreadSanitizer and run by tests/sanitize/run. Exits with 1 if a report or a task was lost.
#include <cstdio>
#include <numeric>
#include <thread>
#include <vector>

#include "../../csrc/cpu/tally.h"

using namespace ldpk;

// What a tally calls, of the scalar kernels: all of them would take long to compile.
Kernels counting() {
  Kernels kernels{};
  kernels.count_bits = count_bits<ScalarLanes>;
  kernels.decode_f32 = decode_counts<ScalarLanes, float>;
  kernels.decode_f64 = decode_counts<ScalarLanes, double>;
  return kernels;
}

// Short calls of several threads at once, also within a task: every task is done once, by a thread that no other has.
bool tasks_are_done_once() {
  std::atomic<int64_t> wrong{0};
  const auto calls = [&](int64_t rounds, auto again) -> void {
    for (int64_t round = 0; round < rounds; ++round) {
      const int64_t tasks = 1 + round % 7, threads = 1 + round % 5;
      std::vector<int64_t> done(tasks), of_thread(threads);
      parallel_for(tasks, threads, [&](int64_t task, int64_t thread) {
        ++done[task];
        ++of_thread[thread];
        if (task == 3 && rounds > 9) again(3, again);
      });
      for (const int64_t times : done) wrong += times != 1;
      wrong += std::accumulate(of_thread.begin(), of_thread.end(), int64_t{0}) != tasks;
    }
  };
  {
    std::vector<std::jthread> callers;
    for (int caller = 0; caller < 4; ++caller) callers.emplace_back([&] { calls(1000, calls); });
  }
  return wrong == 0;
}

int main() {
  if (!tasks_are_done_once()) {
    std::printf("a task was lost, or done twice\n");
    return 1;
  }
  constexpr int64_t bytes = 20'000, threads = 4, rounds = 20;
  const Kernels kernels = counting();
  Tally tally(bytes, kernels), other(bytes, kernels);
  const std::vector<uint8_t> ones(bytes, 0xff), odd(bytes, 0x55);
  const auto work = [&](int64_t number) {
    for (int64_t round = 0; round < rounds; ++round) {
      tally.add({ones.data(), odd.data(), ones.data()}, 1 + round % 3);
      if (number == 0) other.merge(tally);
      if (number == 1) tally.merge(other);
      if (number == 2) {
        std::vector<float> out(1000);
        tally.decode(8 * round, 1000, 0.0, 1.0, out.data(), 2);
        other.merge(other);
        const int64_t count = other.count();
        other.restore(0, nullptr, 0);
        if (count < 0) return;
      }
      if (number == 3 && tally.planes().back().size() != bytes) std::exit(1);
    }
  };
  std::vector<std::jthread> all;
  for (int64_t number = 0; number < threads; ++number) all.emplace_back(work, number);
  all.clear();
  Tally sum(bytes, kernels);
  sum.merge(tally);
  sum.merge(sum);
  const int64_t count = sum.count();
  std::vector<double> out(8 * bytes);
  sum.decode(0, 8 * bytes, 0.0, 1.0, out.data(), 3);
  // An even element is in every report, an odd one in two of three.
  for (int64_t e = 0; e < 8 * bytes; ++e) {
    const double expected = e % 2 ? static_cast<double>(count / 3 * 2) : static_cast<double>(count);
    if (out[e] != expected) {
      std::printf("element %lld is in %g of %lld reports\n", static_cast<long long>(e), out[e],
                  static_cast<long long>(count));
      return 1;
    }
  }
  return count < 2 * 3 * threads * rounds;
}
