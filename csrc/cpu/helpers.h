// SPDX-License-Identifier: Apache-2.0
// Threads that wait between calls: one takes 20 microseconds to start, and a few to wake. A call offers its work to
// those that are free, starts more where they are too few, and when the work is done takes the offer back from those
// that have not begun: nothing waits for a thread to wake. They know nothing of Python, take no signals but faults and
// hold nothing between calls. A fork leaves them behind, and the child starts its own.
#pragma once

#include <pthread.h>

#include <array>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <thread>

namespace ldpk {

class Helper {
 public:
  // call(what, thread), which throws nothing.
  struct Work {
    const void* what;
    void (*call)(const void*, int64_t);
    int64_t thread;
  };
  // What `offer` answers where no offer was made: it works for another call, or the system has no room for a thread.
  enum : uint32_t { kBusy, kNone };

  uint32_t offer(const Work& work) {
    uint32_t state = state_.load();
    const uint32_t phase = state % kPhases;
    if ((phase != kFree && phase != kUnborn) || !state_.compare_exchange_strong(state, state - phase + kTaken)) {
      return kBusy;
    }
    work_ = work;
    const uint32_t offered = state - phase + kPhases + kOffered;  // unlike all before it
    state_.store(offered);
    if (phase == kFree) {
      state_.notify_one();
    } else if (!start()) {
      state_.store(offered - kOffered + kUnborn);
      return kNone;
    }
    return offered;
  }

  // What was offered is taken back, or waited for.
  void settle(const uint32_t offered) {
    uint32_t state = offered;
    if (!state_.compare_exchange_strong(state, offered - kOffered + kFree)) state_.wait(offered - kOffered + kWorks);
  }

  void forget() { state_.store(kUnborn); }

 private:
  enum : uint32_t { kUnborn, kFree, kTaken, kOffered, kWorks, kPhases = 8 };

  bool start() noexcept {
    sigset_t others, before;
    sigfillset(&others);
    for (const int own : {SIGSEGV, SIGBUS, SIGFPE, SIGILL}) sigdelset(&others, own);
    pthread_sigmask(SIG_SETMASK, &others, &before);
    bool started = true;
    try {
      std::thread([this] { live(); }).detach();
    } catch (...) {
      started = false;
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return started;
  }

  [[noreturn]] void live() {
    for (;;) {
      uint32_t state = state_.load();
      if (state % kPhases != kOffered) {
        state_.wait(state);
      } else if (state_.compare_exchange_strong(state, state - kOffered + kWorks)) {
        work_.call(work_.what, work_.thread);
        state_.store(state - kOffered + kFree);
        state_.notify_one();
      }
    }
  }

  // A phase, and how many offers there were. One thread at most sleeps on it: this one, for an offer, or the caller,
  // for its end. Sequentially consistent: a store that passes the look for sleepers would leave one asleep.
  alignas(64) std::atomic<uint32_t> state_{kUnborn};
  Work work_{};
};

// Trivially destroyed: threads wait in it until the process ends.
class Helpers {
 public:
  // work(t) for t from 1 below n on helpers, as far as there are any, while the caller is in work(0).
  template <class Function>
  void run(int64_t n, const Function& work) {
    const auto call = [](const void* what, int64_t thread) { (*static_cast<const Function*>(what))(thread); };
    struct {
      Helper* helper;
      uint32_t number;
    } offers[kMost];
    size_t made = 0;
    for (Helper& helper : helpers_) {
      if (static_cast<int64_t>(made) + 1 >= n) break;
      const uint32_t offer = helper.offer({&work, call, static_cast<int64_t>(made) + 1});
      if (offer == Helper::kNone) break;
      if (offer != Helper::kBusy) offers[made++] = {&helper, offer};
    }
    work(0);
    for (size_t i = 0; i < made; ++i) offers[i].helper->settle(offers[i].number);
  }

  void forget() {
    for (Helper& helper : helpers_) helper.forget();
  }

 private:
  static constexpr int64_t kMost = 256;
  std::array<Helper, kMost> helpers_;
};

inline Helpers helpers;
inline const int forgotten_in_a_child = pthread_atfork(nullptr, nullptr, [] { helpers.forget(); });

}  // namespace ldpk
