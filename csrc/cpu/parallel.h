// SPDX-License-Identifier: Apache-2.0
// Threads for one call. They are started and joined within it: no pool outlives a call, so a fork never meets one, and
// 20 microseconds a thread are small beside the work that is worth a thread.
#pragma once

#include <atomic>
#include <cfenv>
#include <exception>
#include <mutex>
#include <numeric>
#include <thread>
#include <type_traits>
#include <vector>

#include "../common.h"

namespace ldpk {

// A caller may have set flush-to-zero or another rounding mode. Thresholds are the same on every machine, so the
// kernels run in the default environment and give the caller's back.
class DefaultFloatEnvironment {
 public:
  DefaultFloatEnvironment() {
    std::fegetenv(&saved_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~DefaultFloatEnvironment() { std::fesetenv(&saved_); }
  DefaultFloatEnvironment(const DefaultFloatEnvironment&) = delete;

 private:
  std::fenv_t saved_;
};

// task(i), or task(i, thread), for every i in [0, tasks), on at most `threads` threads: the caller is thread 0. Where
// the system has no room for another thread, fewer do the work. What a task throws ends the call, and is thrown here.
template <class Task>
void parallel_for(int64_t tasks, int64_t threads, Task task) {
  std::atomic<int64_t> next{0};
  std::exception_ptr error;
  std::mutex error_mutex;
  const auto work = [&](int64_t thread) {
    DefaultFloatEnvironment environment;
    try {
      for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < tasks;) {
        if constexpr (std::is_invocable_v<Task, int64_t, int64_t>) {
          task(i, thread);
        } else {
          task(i);
        }
      }
    } catch (...) {
      next.store(tasks, std::memory_order_relaxed);
      const std::scoped_lock lock(error_mutex);
      if (!error) error = std::current_exception();
    }
  };
  {
    std::vector<std::jthread> helpers;
    try {
      for (int64_t t = 1; t < threads && t < tasks; ++t) helpers.emplace_back(work, t);
    } catch (const std::exception&) {  // of the thread that could not be started, or of the list of them
    }
    work(0);
  }
  if (error) std::rethrow_exception(error);
}

// task(pass, i, thread) for every i of one pass after another, by threads that are started once. Nothing is thrown.
template <class Task>
void parallel_passes(const std::vector<int64_t>& tasks, int64_t threads, Task task) {
  std::atomic<int64_t> done{0};
  const int64_t all = std::accumulate(tasks.begin(), tasks.end(), int64_t{0});
  parallel_for(all, threads, [&](int64_t i, int64_t thread) noexcept {
    int64_t before = 0;
    size_t pass = 0;
    while (i - before >= tasks[pass]) before += tasks[pass++];
    // Tasks are begun in order: what is waited for is at work.
    for (int64_t now; (now = done.load(std::memory_order_acquire)) < before;) done.wait(now, std::memory_order_acquire);
    task(pass, i - before, thread);
    if (done.fetch_add(1, std::memory_order_acq_rel) + 1 == before + tasks[pass]) done.notify_all();
  });
}

}  // namespace ldpk
