// SPDX-License-Identifier: BSD-3-Clause
// A socket of the handshake, on which one message follows the other.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "bridge/nbd/wire.hpp"
#include "rdma/client.hpp"
#include "rdma/transport/tls/session.hpp"

namespace rnbd::nbd {

/// Threads: blocks; one.
/// Errors:  false when the client has gone, has used up its time, or we are interrupted.
class HandshakeSocket {
 public:
  /// `patience`: the time from now on for the whole handshake, even if the client is busy all the
  /// time.
  HandshakeSocket(int fd, const rtrs::Interrupt& interrupt, std::chrono::milliseconds patience)
      : fd_{fd}, interrupt_{interrupt}, deadline_{std::chrono::steady_clock::now() + patience} {}

  [[nodiscard]] bool receive(void* data, std::size_t size);
  [[nodiscard]] bool skip(std::size_t size);
  [[nodiscard]] bool send(const void* data, std::size_t size);
  [[nodiscard]] bool send(const std::string& bytes) { return send(bytes.data(), bytes.size()); }
  /// True if the client has sent bytes that were not asked for yet.
  bool has_arrivals() const;
  /// From now on all bytes go through this session, which begins with its handshake. Bytes that
  /// were read ahead are an error. False: it failed, session.failure() says why if the client was
  /// there.
  [[nodiscard]] bool secure(rtrs::tls::Session& session);
  /// The client's time limit does not count the time that we kept it waiting.
  void prolong(std::chrono::steady_clock::duration time) { deadline_ += time; }
  /// Answers an option.
  [[nodiscard]] bool reply(std::uint32_t option, Reply type, std::string_view data = {});

 private:
  bool wait_for(short events);
  ssize_t receive_some(void* data, std::size_t size);
  ssize_t send_some(const void* data, std::size_t size);
  bool flush();

  int fd_;
  rtrs::tls::Session* tls_ = nullptr;
  const rtrs::Interrupt& interrupt_;
  std::chrono::steady_clock::time_point deadline_;
};

/// As much of a text as NBD allows, without half a character at its end.
std::string_view clipped(std::string_view text);

/// The bytes of a value, to be put one after the other.
template <class T>
std::string bytes_of(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}

/// Takes an option's data apart.
class OptionReader {
 public:
  explicit OptionReader(std::string_view data) : rest_{data} {}

  template <class T>
  T take() {
    T value{};
    if (rest_.size() < sizeof(T)) {
      good_ = false;
    } else {
      __builtin_memcpy(&value, rest_.data(), sizeof(T));
      rest_.remove_prefix(sizeof(T));
    }
    return value;
  }
  /// A string with its length in front.
  std::string take_string() {
    const std::uint32_t length = take<big_uint32_t>();
    if (!good_ || length > rest_.size() || length > kMaxNameLength) {
      good_ = false;
      return {};
    }
    std::string text{rest_.substr(0, length)};
    rest_.remove_prefix(length);
    return text;
  }
  std::size_t left() const { return rest_.size(); }
  /// True if all values were there, and no further bytes.
  bool complete() const { return good_ && rest_.empty(); }
  bool good() const { return good_; }

 private:
  std::string_view rest_;
  bool good_ = true;
};

}  // namespace rnbd::nbd
