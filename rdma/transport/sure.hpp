// SPDX-License-Identifier: BSD-3-Clause
// Steps of an end, which must be taken also while there is no memory.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <chrono>
#include <cstddef>
#include <new>
#include <thread>

namespace rtrs {

/// Takes the step. Where it lacks memory it is tried again until there is some: everybody waits
/// then, but nobody is left half closed.
///
/// Threads: any.
template <class Step>
void surely(const Step& step) {
  for (;;) {
    try {
      return step();
    } catch (const std::bad_alloc&) {
      std::this_thread::sleep_for(std::chrono::milliseconds{1});
    }
  }
}

/// Waits until there is memory for a few small things.
///
/// Threads: any.
inline void await_memory() {
  constexpr std::size_t kEnough = 4096;  // bytes
  surely([] { ::operator delete(::operator new(kEnough)); });
}

template <class Work>
void post_surely(boost::asio::io_context& io, const Work& work) {
  surely([&] { boost::asio::post(io, work); });
}

/// Runs what only tells about something. It may remain untold for want of memory.
template <class Tell>
void tell_if_possible(const Tell& tell) {
  try {
    tell();
  } catch (const std::bad_alloc&) {
    return;
  }
}

}  // namespace rtrs
