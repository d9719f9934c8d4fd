// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/client/session.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "bridge/client/questions.hpp"
#include "bridge/client/remote_device.hpp"
#include "bridge/client/uri.hpp"
#include "bridge/protocol/printable.hpp"
#include "bridge/protocol/uuid.hpp"

namespace rnbd {
namespace {

/// An interrupt with a time limit.
///
/// Threads: as the original.
class Limited {
 public:
  Limited(const Interrupt& original, std::chrono::steady_clock::duration limit)
      : original_{original}, end_{std::chrono::steady_clock::now() + limit} {}
  bool expired() const { return std::chrono::steady_clock::now() >= end_; }
  Interrupt interrupt() { return {&Limited::asked, this}; }

 private:
  static bool asked(void* context) {
    const auto& self = *static_cast<const Limited*>(context);
    return self.original_() || self.expired();
  }

  const Interrupt& original_;
  std::chrono::steady_clock::time_point end_;
};

tl::expected<void, Failure> expect_disk(const RemoteDevice& device, const wire::Uuid& wanted) {
  const wire::Uuid& is = device.geometry().export_uuid;
  if (wanted == wire::Uuid{} || wanted == is) return {};
  const std::string about =
      is == wire::Uuid{} ? " cannot be told from others, since its server knows no UUID of it"
                         : " is another disk: its UUID is " + uuid_text(is);
  return tl::unexpected(Failure{
      ESTALE, in_quotes(device.name()) + about + "; wanted is " + uuid_text(wanted) + " (uuid=)"});
}

}  // namespace

Failure nonsense_from_server(const std::string& what) {
  return {EPROTO, "the server answered with " + what +
                      "; is it an RNBD server of a version that "
                      "this client knows?"};
}

const char* describe_error(int error) {
  if (error == EMSGSIZE) {
    return "Message too long: the request has more data than the session takes, which "
           "--max-io-size of rnbd-server limits (max_io_size in `rnbd-ctl SOCKET status`); connect "
           "anew";
  }
  const char* text = strerrordesc_np(error);
  return text != nullptr ? text : "Unknown error";
}

Session::Session(rtrs::Log log)
    : log_{std::move(log)}, table_{[] { return std::make_shared<Mapping>(); }} {}
Session::~Session() = default;

bool Session::has_extensions() const {
  return (era().limits.features & rtrs::wire::kFeatureUserMessages) != 0;
}

tl::expected<std::shared_ptr<Session>, Failure> Session::connect(rtrs::ClientOptions options,
                                                                 const Interrupt& interrupt) {
  rtrs::Log log = options.log;
  Limited limited{interrupt, options.connect_timeout};
  const auto make = [&](rtrs::RecoveryHandler& recovery) {
    options.recovery = &recovery;
    return rtrs::Client::connect(std::move(options), interrupt);
  };
  auto session = start(make, std::move(log), limited.interrupt());
  if (!session && session.error().error == EINTR && limited.expired()) {
    return tl::unexpected(
        Failure{ETIMEDOUT, "timed out while connecting: " + session.error().text});
  }
  return session;
}

tl::expected<std::shared_ptr<Session>, Failure> Session::start(const ClientMaker& make,
                                                               rtrs::Log log,
                                                               const Interrupt& interrupt) {
  std::shared_ptr<Session> session{new Session{std::move(log)}};
  auto client = make(*session);
  if (!client) return tl::unexpected(client.error());
  session->client_ = std::move(*client);
  const rtrs::SessionLimits limits = session->client_->limits();
  {
    const std::lock_guard lock{session->mutex_};
    session->table_.enter(limits);
  }
  if (int error = ask_session_info(*session->client_, interrupt); error != 0) {
    if (error == EPROTO) return tl::unexpected(nonsense_from_server("a malformed session info"));
    std::string text = "the server does not answer the RNBD session info";
    const std::string trouble =
        error == EINTR ? trouble_with(session->client_->paths()) : describe_error(error);
    if (!trouble.empty()) text += ": " + trouble;
    return tl::unexpected(Failure{error, text});
  }
  return session;
}

tl::expected<std::unique_ptr<RemoteDevice>, Failure> Session::open(const std::string& device,
                                                                   const OpenOptions& options,
                                                                   const Interrupt& interrupt) {
  if (std::string complaint = complaint_about_device_name(device); !complaint.empty()) {
    return tl::unexpected(Failure{EINVAL, complaint});
  }
  for (;;) {
    if (!alive()) return tl::unexpected(Failure{EIO, failure()});
    // Linux's server takes names for paths, and must not be asked for one device twice: that
    // collides in its sysfs.
    const std::string name = has_extensions() ? device : plain_path(device);
    bool created = false;
    auto joined = join(name, options, interrupt, created);
    if (!joined) return tl::unexpected(joined.error());
    const std::shared_ptr<Mapping> mapping = *std::move(joined);
    if (created) {
      auto fetched = finish_opening(*mapping, interrupt);
      if (!fetched) return tl::unexpected(fetched.error());
    }
    const bool read_only = options.access == wire::AccessMode::read_only;
    std::unique_ptr<RemoteDevice> opened{new RemoteDevice{shared_from_this(), mapping, read_only}};
    if (auto right = expect_disk(*opened, options.uuid); !right) {
      return tl::unexpected(right.error());
    }
    if (created) return opened;
    // Others have had it for some time.
    if (auto looked = opened->look_again(interrupt); !looked) return tl::unexpected(looked.error());
    if (!known_of(*mapping).lost) return opened;
  }
}

}  // namespace rnbd
