// SPDX-License-Identifier: BSD-3-Clause
// Several requests that a caller waits for as a whole.
#pragma once

namespace rtrs {

class ClientLane;

/// Something that takes one or more requests on one lane and that a caller waits for as a whole.
///
/// Threads: start() and cancel() with the lane held; finished() likewise, or after the wait ended.
class Operation {
 public:
  Operation() = default;
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;
  virtual ~Operation() = default;

  /// Submits the first requests; may finish at once.
  virtual void start(ClientLane& lane) = 0;
  /// Gives up: afterwards the lane refers to nothing of this operation.
  virtual void cancel(ClientLane& lane) = 0;

  bool finished() const { return finished_; }
  int error() const { return error_; }  ///< errno, valid once finished

  /// Called by a waiter before start(): the callback runs when the operation finishes, like
  /// Request::done, and with the same restriction.
  void on_finish(void (*callback)(void*), void* context) {
    callback_ = callback;
    context_ = context;
  }

 protected:
  void finish(int error) {
    error_ = error;
    finished_ = true;
    if (callback_ != nullptr) callback_(context_);
  }

 private:
  bool finished_ = false;
  int error_ = 0;
  void (*callback_)(void*) = nullptr;
  void* context_ = nullptr;
};

}  // namespace rtrs
