// SPDX-License-Identifier: BSD-3-Clause
// Tools of every fuzz target: input taken apart, and properties that must hold.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>

#include "rdma/wire/endian.hpp"
#include "rdma/wire/result.hpp"

/// The target: called by libFuzzer with what it invents and by replay.cpp with the stored corpus.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace fuzz {

/// Stops the program when a property does not hold, in every build.
inline void require(bool holds, const char* property) {
  if (holds) return;
  std::fprintf(stderr, "property violated: %s\n", property);
  std::abort();
}

/// True when the decoder failed with one of the errors that its description names.
template <class T>
bool failed_with(const rtrs::wire::Result<T>& result,
                 std::initializer_list<rtrs::wire::DecodeError> documented) {
  for (auto error : documented) {
    if (result.error() == error) return true;
  }
  return false;
}

/// Takes parameters off the front of an input; the rest is the message. An input that is too short
/// yields zeros.
class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) : rest_(std::as_bytes(std::span{data, size})) {}

  template <class T>
  T take() {
    T value{};
    const std::size_t n = rest_.size() < sizeof(T) ? rest_.size() : sizeof(T);
    if (n != 0) std::memcpy(&value, rest_.data(), n);
    rest_ = rest_.subspan(n);
    return value;
  }
  rtrs::wire::ConstBytes rest() const { return rest_; }

 private:
  rtrs::wire::ConstBytes rest_;
};

template <class T>
bool same_bytes(const T& a, const T& b) {
  return std::memcmp(&a, &b, sizeof(T)) == 0;
}

}  // namespace fuzz
