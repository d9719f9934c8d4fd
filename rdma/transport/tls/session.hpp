// SPDX-License-Identifier: BSD-3-Clause
// TLS on one connection: a handshake, then records.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <vector>

#include "rdma/core/identity.hpp"
#include "rdma/failure.hpp"
#include "rdma/transport/tls/credentials.hpp"

namespace rtrs::tls {

struct SessionSetup {
  std::shared_ptr<const Credentials> credentials;
  /// The host that a client means; the server's certificate must name it.
  std::string server_name;
  /// The protocol inside (ALPN), which both ends must name; "" = none has to be named.
  std::string protocol;
};

/// GnuTLS, which never touches the socket: it reads what was received for it, and what it wants to
/// send is kept until the socket takes it. So nothing blocks, and no call of the library waits
/// while others post.
///
/// Threads: one at a time; await() beside send() and flush().
class Session {
 public:
  /// Errors: ENOMEM, EINVAL.
  static tl::expected<std::unique_ptr<Session>, Failure> create(SessionSetup setup);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  const Credentials& credentials() const { return *setup_.credentials; }
  /// The secret of this name, which the peer says it has. Null: there is none.
  const Secret* claimed_key(std::string_view name);

  // ---- Handshake (handshake.cpp)

  enum class Step {
    done,     ///< identity() is known
    receive,  ///< more is needed of the peer
    failed,   ///< failure() says why; what flush() sends then tells the peer
  };
  /// Goes on with what was received; what is to be sent then is for flush(). Does public-key work,
  /// hundreds of microseconds of it.
  Step shake_hands();
  const Identity& identity() const { return identity_; }
  const Failure& failure() const { return failure_; }
  /// The user that the peer says it is, in whatever bytes, and by what. How::none: it has said
  /// nothing of that.
  Identity claim() const;

  // ---- What goes over the socket

  /// Receives for shake_hands(), some of what has come. Returns bytes, 0 at the end, or -errno.
  ssize_t fetch(int socket);
  /// The same, and waits as the socket is set up; for receive(). False: nothing has come.
  bool await(int socket);
  /// Sends what was left behind. Returns 0, also when something stays, or errno.
  int flush(int socket);
  bool has_output() const { return output_begin_ < output_.size(); }

  // ---- Records (records.cpp)

  /// As sendmsg(2): how many bytes were taken, or -errno; -EAGAIN while the socket is full. Taken
  /// is all or, if the socket gets full, less; what was taken needs not stay.
  ssize_t send(int socket, std::span<const iovec> from);
  /// As recvmsg(2): bytes, 0 when the peer has ended the session in order, or -errno. Fewer than
  /// asked for only if no whole record is left.
  ssize_t receive(int socket, std::span<const iovec> into);
  /// receive() has more to tell, without the socket.
  bool has_more() const;
  /// Tells the peer that this is the end, if it can be told at once.
  void end(int socket);

 private:
  struct Scratch;
  struct Hooks;         ///< what GnuTLS calls
  struct Verification;  ///< what it is told to look for in certificates
  class Pieces;

  /// `broken`: nothing is sent any more, because of a failure, or after end().
  enum class State : std::uint8_t { shaking, ready, broken };

  explicit Session(SessionSetup setup);
  int prepare();
  int prepare_verification();
  Step conclude();
  std::string judge_peer();
  std::string judge_certificate();
  Step fail(int error, std::string text);
  Step fail_handshake(int error);
  std::string refusal() const;

  static Scratch& scratch();
  ssize_t pull(std::byte* to, std::size_t size);
  ssize_t pull_from_socket(std::byte* to, std::size_t size);
  void keep(std::span<const std::byte> rest);
  std::size_t room_for_input(std::size_t least);
  void grow_input(std::size_t size);
  bool goes_on(ssize_t result);
  ssize_t receive_failed(ssize_t error);
  bool encrypt(std::span<const std::byte> data);
  std::size_t encrypt_burst(Pieces& pieces);

  SessionSetup setup_;
  gnutls_session_int* session_ = nullptr;
  std::unique_ptr<Verification> verification_;
  Identity identity_;
  Failure failure_;
  std::optional<std::string> claimed_;  ///< the shared key that the peer says it has
  State state_ = State::shaking;

  std::unique_ptr<std::byte[]> input_;  ///< ciphertext that came
  std::size_t input_size_ = 0, input_begin_ = 0, input_end_ = 0;
  bool ended_ = false;  ///< the peer sends no more
  bool cut_ = false;    ///< and that was in the midst of something
  int socket_error_ = 0;
  std::vector<std::byte> output_;  ///< ciphertext that the socket did not take
  std::size_t output_begin_ = 0;

  // The state of receive() and send() while they run.
  std::vector<std::byte>* sink_ = &output_;  ///< where new ciphertext goes
  Scratch* source_ = nullptr;
  int socket_ = -1;
  std::size_t wanted_ = 0;        ///< bytes that still fit
  bool drained_ = false;          ///< the socket had no more
  bool starved_ = false;          ///< GnuTLS wanted more than has come
  unsigned without_data_ = 0;     ///< records in a row
  std::optional<ssize_t> later_;  ///< what receive() says the next time

  std::size_t fetched_ = 0;  ///< bytes, by fetch()
};

}  // namespace rtrs::tls
