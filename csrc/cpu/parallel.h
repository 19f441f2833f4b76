// SPDX-License-Identifier: Apache-2.0
// One call's tasks on several threads (helpers.h).
#pragma once

#include <algorithm>
#include <atomic>
#include <cfenv>
#include <exception>
#include <mutex>
#include <numeric>
#include <type_traits>
#include <vector>

#include "../common.h"
#include "helpers.h"

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
  const auto work = [&](int64_t thread) noexcept {
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
  if (const int64_t most = std::min(tasks, threads); most > 1) {
    helpers.run(most, work);
  } else {
    work(0);
  }
  if (error) std::rethrow_exception(error);
}

// task(pass, i, thread) for every i of one pass after another, by the same threads. Nothing is thrown.
template <class Task>
void parallel_passes(const std::vector<int64_t>& tasks, int64_t threads, Task task) {
  std::atomic<int64_t> done{0};
  const int64_t all = std::accumulate(tasks.begin(), tasks.end(), int64_t{0});
  parallel_for(all, threads, [&](int64_t i, int64_t thread) noexcept {
    int64_t before = 0;
    size_t pass = 0;
    while (i - before >= tasks[pass]) before += tasks[pass++];
    // Tasks are begun in order: what is waited for is at work.
    for (int64_t now; (now = done.load()) < before;) done.wait(now);
    task(pass, i - before, thread);
    if (done.fetch_add(1) + 1 == before + tasks[pass]) done.notify_all();
  });
}

}  // namespace ldpk
