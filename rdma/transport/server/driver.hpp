// SPDX-License-Identifier: BSD-3-Clause
// The server in operation: reactors, acceptors, sessions.
#pragma once

#include <atomic>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/thread_pool.hpp>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "rdma/core/admission.hpp"
#include "rdma/server.hpp"
#include "rdma/transport/acceptor.hpp"
#include "rdma/transport/reactor.hpp"
#include "rdma/transport/refusal_log.hpp"
#include "rdma/transport/resolve.hpp"
#include "rdma/transport/server/session_host.hpp"

namespace rtrs {

/// Nothing is locked meanwhile, and event loops are only woken.
class AccountLock final : public MemoryAccount::Lock {
 public:
  void lock() override { mutex_.lock(); }
  void unlock() override { mutex_.unlock(); }

 private:
  std::mutex mutex_;
};

/// Connections come in on reactor 0; then they belong to their session's reactor.
///
/// Threads: as Server; welcome() on reactor 0; sessions on theirs.
class ServerDriver final : public Server, public SessionEnvironment, public AcceptorOwner {
 public:
  ServerDriver(ServerOptions options, ServerHandler& handler);
  ~ServerDriver() override;

  tl::expected<void, Failure> start() override;
  std::vector<std::string> addresses() const override;
  ServerId id() const override { return id_; }
  std::vector<ListenerStatus> listeners() const override;
  std::string ending_certificates() const override;
  bool set_access(unsigned listener, wire::PathAccess access) override;
  std::vector<ServerSessionStatus> sessions() override;
  void end_path(const std::string& peer, const std::string& why) override;
  void end_session(const wire::Uuid& uuid, const std::string& user,
                   const std::string& why) override;
  std::uint64_t memory() const override;
  std::uint64_t memory_limit() const override { return options_.memory_limit; }
  std::uint64_t memory_lent() const override { return account_.lent(); }
  std::uint64_t memory_waits() const override { return memory_waits_; }
  unsigned connections() const override { return connections_; }
  Repeats past_repeats() const override;
  bool stop(Duration drain) override;
  std::vector<Reactor*> reactors() override;

 private:
  struct Entrance {
    std::unique_ptr<Acceptor> acceptor;
    wire::PathAccess access;  ///< of the paths that come in there; guarded by mutex_
    TlsMode tls = TlsMode::off;
    AuthMode auth = AuthMode::none;
    std::vector<Network> from = {};

    bool lets_in(std::string_view peer) const;
  };
  using Entrances = std::vector<Entrance>;
  /// An address that the machine lacks for now.
  struct LateEntrance {
    ListenAddress address;
    std::string why;                     ///< guarded by mutex_
    std::shared_ptr<HostLookup> lookup;  ///< null: the host is no name
  };

  void welcome(std::unique_ptr<Incoming> incoming, unsigned entrance);
  void let_in(std::unique_ptr<Incoming>& incoming, unsigned entrance);
  std::shared_ptr<SessionHost> create_session(Admission::SessionId id,
                                              const wire::ConnectParameters& parameters,
                                              const Incoming& incoming);
  ServerPathOptions path_options(const wire::ConnectParameters& parameters,
                                 const Incoming& incoming, unsigned entrance, bool proves) const;
  bool lacks_connections(const wire::ConnectParameters& parameters);
  bool turn_away(Admission::Place half_open);
  void forget_path(Place path);
  void forget_session(Admission::SessionId id);

  // For sessions, each on its reactor
  Admission::Admitted admit(Place path, std::string_view name,
                            std::optional<std::string_view> user) override;
  std::string withdrawn(const Identity& user) override;
  void on_path_closing(Place path, bool over) override;
  void on_path_shrunk(Place path, std::uint64_t held) override;
  void on_path_silent(Place path, bool silent) override;
  void on_starved() override;
  void on_path_gone(Place path, Reactor& reactor) override;
  void on_idle(SessionId session) override;
  void on_session_gone(SessionId session, Reactor& reactor) override;
  void on_connection_closed() override { --connections_; }
  void on_auth_refused(AuthRefusal refusal, unsigned entrance) override;
  void log_of_client(LogLevel level, const std::string& peer, const std::string& line) override;

  // driver_entrances.cpp
  unsigned room() const override;
  void on_refused(LogLevel level, const std::string& peer, const std::string& why) override;
  void on_unproven(const AuthRefusal& refusal) override;
  tl::expected<void, Failure> open_entrances();
  tl::expected<void, Failure> prepare_tls();
  TlsMode tls_mode(const ListenAddress& address) const;
  AuthMode auth_mode(const ListenAddress& address) const {
    return address.auth.value_or(options_.auth);
  }
  tl::expected<Entrances, Failure> open_entrances_at(const ListenAddress& address,
                                                     const std::vector<std::string>& hosts);
  AcceptorOptions entrance_options(TlsMode tls);
  void start_entrance(unsigned entrance);
  boost::asio::awaitable<void> open_late_entrances();
  boost::asio::awaitable<void> look_after_keys();
  boost::asio::awaitable<bool> try_late(LateEntrance& late);
  bool take_in(Entrances entrances);
  void close_acceptors();
  template <class Function>
  void for_each_session(Function function);
  void log(LogLevel level, const std::string& text) const;

  ServerOptions options_;
  ServerHandler& handler_;
  std::uint64_t volatile_epoch_;
  std::mt19937_64 random_;  ///< reactor 0
  const ServerId id_;
  RefusalLog refusals_;  ///< reactor 0
  AccountLock account_lock_;
  MemoryAccount account_;  ///< stays until what is left in the reactors has died
  std::vector<std::unique_ptr<Reactor>> reactors_;
  std::vector<std::thread> threads_;
  std::shared_ptr<tls::KeyStore> tls_keys_;              ///< null: nobody proves anything
  std::optional<boost::asio::thread_pool> tls_workers_;  ///< goes before the reactors
  Entrances entrances_;                                  ///< grows on reactor 0, under mutex_
  std::vector<LateEntrance> late_;                       ///< changes on reactor 0, under mutex_
  std::size_t next_reactor_ = 0;
  std::atomic<unsigned> connections_{0};
  std::atomic<std::uint64_t> memory_waits_{0};
  std::atomic<Instant> told_of_memory_{Instant::min()};

  mutable std::mutex mutex_;  ///< guards the following members:
  std::condition_variable session_gone_;
  Admission admission_;
  std::map<Admission::SessionId, std::shared_ptr<SessionHost>> sessions_;
  Repeats past_repeats_;
  bool stopping_ = false;
};

}  // namespace rtrs
