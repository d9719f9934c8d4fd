// SPDX-License-Identifier: BSD-3-Clause
// Coroutines of a reactor: work of several steps that reads downward. No event loop is needed:
// whoever has the event that a coroutine waits for goes on with it.
#pragma once

#include <coroutine>
#include <exception>
#include <optional>
#include <utility>

namespace rnbd {

/// A coroutine that starts at once. Its owner drops it, wherever it waits.
///
/// Errors:  an exception that leaves it ends the program.
/// Threads: one.
class [[nodiscard]] Routine {
 public:
  struct promise_type {
    Routine get_return_object() {
      return Routine{std::coroutine_handle<promise_type>::from_promise(*this)};
    }
    std::suspend_never initial_suspend() noexcept { return {}; }
    std::suspend_always final_suspend() noexcept { return {}; }
    void return_void() noexcept {}
    void unhandled_exception() noexcept { std::terminate(); }
  };

  Routine() = default;
  Routine(Routine&& other) noexcept : self_{std::exchange(other.self_, nullptr)} {}
  Routine& operator=(Routine&& other) noexcept {
    std::swap(self_, other.self_);
    return *this;
  }
  ~Routine() {
    if (self_) self_.destroy();
  }

 private:
  explicit Routine(std::coroutine_handle<> self) : self_{self} {}

  std::coroutine_handle<> self_;
};

/// A coroutine with a result. It starts when it is awaited, and then its awaiter goes on.
///
/// Errors:  its exceptions reach the awaiter.
/// Threads: one.
template <class T>
class [[nodiscard]] Task {
 public:
  struct promise_type {
    Task get_return_object() { return Task{Handle::from_promise(*this)}; }
    std::suspend_always initial_suspend() noexcept { return {}; }
    auto final_suspend() noexcept {
      struct GoOn {
        bool await_ready() noexcept { return false; }
        std::coroutine_handle<> await_suspend(Handle ended) noexcept {
          return ended.promise().awaiting;
        }
        void await_resume() noexcept {}
      };
      return GoOn{};
    }
    template <class From>
    void return_value(From&& from) {
      result.emplace(std::forward<From>(from));
    }
    void unhandled_exception() { thrown = std::current_exception(); }

    std::coroutine_handle<> awaiting;
    std::optional<T> result;
    std::exception_ptr thrown;
  };

  Task(Task&& other) noexcept : self_{std::exchange(other.self_, nullptr)} {}
  Task& operator=(Task&&) = delete;
  ~Task() {
    if (self_) self_.destroy();
  }

  bool await_ready() const noexcept { return false; }
  std::coroutine_handle<> await_suspend(std::coroutine_handle<> awaiting) noexcept {
    self_.promise().awaiting = awaiting;
    return self_;
  }
  T await_resume() {
    if (self_.promise().thrown) std::rethrow_exception(self_.promise().thrown);
    return std::move(*self_.promise().result);
  }

 private:
  using Handle = std::coroutine_handle<promise_type>;
  explicit Task(Handle self) : self_{self} {}

  Handle self_;
};

/// An event that one coroutine awaits. It may come before it is awaited; then nothing waits.
///
/// Threads: one.
class Wakeup {
 public:
  /// Goes on with the coroutine, inside this call.
  void wake() {
    has_come_ = true;
    if (auto waiting = std::exchange(waiting_, nullptr)) waiting.resume();
  }

  bool await_ready() const noexcept { return has_come_; }
  void await_suspend(std::coroutine_handle<> waiting) noexcept { waiting_ = waiting; }
  void await_resume() noexcept { has_come_ = false; }

 private:
  std::coroutine_handle<> waiting_;
  bool has_come_ = false;
};

}  // namespace rnbd
