#include "bridge/client/session.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "bridge/client/control.hpp"
#include "bridge/client/interruptible_wait.hpp"
#include "bridge/client/remote_device.hpp"
#include "bridge/client/uri.hpp"

namespace rnbd {
namespace {

/// Asks `left` times (about four a second) before it lets a farewell go unanswered.
struct Patience {
  int left = 8;
  static bool ended(void* context) { return static_cast<Patience*>(context)->left-- <= 0; }
  Interrupt interrupt() { return {&Patience::ended, this}; }
};

/// Names that a list of exports may have. A server could go on for ever, and with it the memory.
constexpr std::uint32_t kMaxExports = 100'000;

/// What a user can do about a refused OPEN.
const char* advice_for(int error) {
  switch (error) {
    case ENOENT:
    case ENXIO:
      return "; check the name against the server's exports";
    case EPERM:
      return "; another client has it open for writing: open it ro, or in migration mode while "
             "it moves from one host to another";
    case EBUSY:
      return "; a program at the server has it in use: stop that, or open it ro";
    case EROFS:
    case EACCES:
      return "; open it ro, or let the server export it for writing";
    default:
      return "";
  }
}

Failure refused(const std::string& device, wire::AccessMode access, int error) {
  return {error, "the server cannot open '" + device + "' (" + wire::to_string(access) +
                     "): " + describe_error(error) + advice_for(error)};
}

Failure nonsense(const std::string& what) {
  return {EPROTO, "the server answered with " + what +
                      "; is it an RNBD server of a version that "
                      "this client knows?"};
}

bool shareable(wire::AccessMode mapped, wire::AccessMode asked) {
  return asked == mapped || asked == wire::AccessMode::read_only;
}

}  // namespace

const char* describe_error(int error) {
  const char* text = strerrordesc_np(error);
  return text != nullptr ? text : "Unknown error";
}

Session::Session(std::unique_ptr<rtrs::Client> client) : client_{std::move(client)} {}
Session::~Session() = default;

bool Session::has_extensions() const {
  return (client_->limits().features & rtrs::wire::kFeatureUserMessages) != 0;
}

tl::expected<std::shared_ptr<Session>, Failure> Session::connect(rtrs::ClientOptions options,
                                                                 const Interrupt& interrupt) {
  auto client = rtrs::Client::connect(std::move(options), interrupt);
  if (!client) return tl::unexpected(client.error());
  return start(std::move(*client), interrupt);
}

tl::expected<std::shared_ptr<Session>, Failure> Session::start(std::unique_ptr<rtrs::Client> client,
                                                               const Interrupt& interrupt) {
  std::shared_ptr<Session> session{new Session{std::move(client)}};
  if (int error = session->exchange_versions(interrupt); error != 0) {
    if (error == EPROTO) return tl::unexpected(nonsense("a malformed session info"));
    return tl::unexpected(Failure{
        error,
        std::string{"the server does not answer the RNBD session info: "} + describe_error(error)});
  }
  return session;
}

int Session::exchange_versions(const Interrupt& interrupt) {
  wire::SessionInfo question;
  question.header = wire::header_of(wire::MessageType::session_info);
  std::array<std::byte, sizeof(wire::SessionInfo)> answer{};
  ControlOperation operation{question, answer};
  if (int error = client_->run_control(operation, interrupt); error != 0) return error;
  auto info = wire::decode<wire::SessionInfo>(answer, wire::MessageType::session_info_response);
  return info && info->version != 0 ? 0 : EPROTO;
}

tl::expected<std::unique_ptr<RemoteDevice>, Failure> Session::open(const std::string& device,
                                                                   const OpenOptions& options,
                                                                   const Interrupt& interrupt) {
  if (std::string complaint = complaint_about_device_name(device); !complaint.empty()) {
    return tl::unexpected(Failure{EINVAL, complaint});
  }
  bool created = false;
  auto mapping = join(device, options, interrupt, created);
  if (!mapping) return tl::unexpected(mapping.error());
  if (created) {
    auto fetched = finish_opening(**mapping, interrupt);
    if (!fetched) return tl::unexpected(fetched.error());
  }
  bool read_only = options.access == wire::AccessMode::read_only;
  return std::unique_ptr<RemoteDevice>{
      new RemoteDevice{shared_from_this(), std::move(*mapping), read_only}};
}

/// Becomes a user of the mapping of that name; `created` means that the caller has to open it.
tl::expected<std::shared_ptr<Session::Mapping>, Failure> Session::join(const std::string& device,
                                                                       const OpenOptions& options,
                                                                       const Interrupt& interrupt,
                                                                       bool& created) {
  const auto interrupted = [&] {
    return tl::unexpected(Failure{EINTR, "interrupted while '" + device + "' was being opened"});
  };
  std::unique_lock lock{mutex_};
  for (;;) {
    auto settled = [&] {
      auto found = mappings_.find(device);
      return found == mappings_.end() || found->second->state == Mapping::State::open;
    };
    if (!interruptible_wait(changed_, lock, interrupt, settled)) return interrupted();
    auto found = mappings_.find(device);
    if (found == mappings_.end()) break;

    std::shared_ptr<Mapping> mapping = found->second;
    const bool fits = shareable(mapping->options.access, options.access);
    if (!fits && mapping->geometry.read_only)
      return tl::unexpected(refused(device, options.access, EROFS));
    if (mapping->users > 0 && !fits) {
      return tl::unexpected(
          Failure{EBUSY, "'" + device + "' is open here in access mode " +
                             wire::to_string(mapping->options.access) + "; it cannot be opened " +
                             wire::to_string(options.access) + " until its users have left"});
    }
    if (mapping->users > 0 || (fits && !mapping->change_abandoned)) {
      ++mapping->users;
      return mapping;
    }
    // Left open with abandoned requests, and of no use as it is: the server has to finish them.
    mapping->state = Mapping::State::closing;
    lock.unlock();
    const int error = close_at_server(mapping->geometry.device_id, interrupt);
    if (error == 0) {
      forget(*mapping);
    } else {
      settle(*mapping);
    }
    if (error == EINTR) return interrupted();
    if (error != 0) return tl::unexpected(refused(device, options.access, error));
    lock.lock();
  }
  auto mapping = std::make_shared<Mapping>();
  mapping->device = device;
  mapping->options = options;
  mappings_.emplace(device, mapping);
  created = true;
  return mapping;
}

tl::expected<void, Failure> Session::finish_opening(Mapping& mapping, const Interrupt& interrupt) {
  // However this ends: others may be waiting for the outcome.
  struct Guard {
    ~Guard() {
      if (mapping != nullptr) session.forget(*mapping);
    }
    Session& session;
    Mapping* mapping;
  } guard{*this, &mapping};
  auto fetched = fetch_geometry(mapping, interrupt);
  if (!fetched) return fetched;
  guard.mapping = nullptr;
  settle(mapping);
  return {};
}

tl::expected<void, Failure> Session::fetch_geometry(Mapping& mapping, const Interrupt& interrupt) {
  const OpenOptions& options = mapping.options;
  std::array<std::byte, sizeof(wire::OpenResponse)> answer{};
  ControlOperation open{wire::encode_open(mapping.device, options.access), answer};
  if (int error = client_->run_control(open, interrupt); error != 0) {
    if (!alive()) return tl::unexpected(Failure{error, failure()});
    return tl::unexpected(refused(mapping.device, options.access, error));
  }
  auto opened = wire::decode<wire::OpenResponse>(answer, wire::MessageType::open_response);
  if (!opened) return tl::unexpected(nonsense("a malformed answer to OPEN"));

  wire::DeviceInfoResponse info;
  if (has_extensions()) {
    wire::DeviceInfo question;
    question.header = wire::header_of(wire::MessageType::device_info);
    question.device_id = opened->device_id;
    std::array<std::byte, sizeof(wire::DeviceInfoResponse)> reply{};
    ControlOperation ask{question, reply};
    int error = client_->run_control(ask, interrupt);
    auto told =
        wire::decode<wire::DeviceInfoResponse>(reply, wire::MessageType::device_info_response);
    if (error != 0 || !told) {
      close_in_passing(opened->device_id);
      if (error == 0) return tl::unexpected(nonsense("a malformed device info"));
      return tl::unexpected(refused(mapping.device, options.access, error));
    }
    info = *told;
  }
  auto geometry = make_geometry(*opened, has_extensions() ? &info : nullptr, client_->limits(),
                                options.geometry);
  if (!geometry) {
    close_in_passing(opened->device_id);
    return tl::unexpected(nonsense(geometry.error()));
  }
  mapping.geometry = *geometry;
  mapping.geometry.read_only = geometry->read_only || options.export_read_only;
  return {};
}

int Session::close_at_server(std::uint32_t device_id, const Interrupt& interrupt) {
  wire::Close close;
  close.header = wire::header_of(wire::MessageType::close);
  close.device_id = device_id;
  ControlOperation operation{close};
  return client_->run_control(operation, interrupt);
}

/// For those who do not care how it ends: the end of the session closes everything anyway.
void Session::close_in_passing(std::uint32_t device_id) {
  if (leaving_ || !alive()) return;
  Patience patience;
  close_at_server(device_id, patience.interrupt());
}

void Session::release(const std::shared_ptr<Mapping>& mapping) {
  {
    std::lock_guard lock{mutex_};
    if (--mapping->users > 0 || (mapping->abandoned && alive())) return;
    mapping->state = Mapping::State::closing;
  }
  close_in_passing(mapping->geometry.device_id);
  forget(*mapping);
}

void Session::settle(Mapping& mapping) {
  std::lock_guard lock{mutex_};
  mapping.state = Mapping::State::open;
  changed_.notify_all();
}

void Session::forget(const Mapping& mapping) {
  std::lock_guard lock{mutex_};
  mappings_.erase(mapping.device);
  changed_.notify_all();
}

tl::expected<std::vector<wire::ExportName>, Failure> Session::list_exports(
    const Interrupt& interrupt) {
  if (!has_extensions()) {
    return tl::unexpected(
        Failure{EOPNOTSUPP,
                "this server cannot list its exports (only rnbdkit servers can); name a device"});
  }
  std::vector<wire::ExportName> exports;
  std::vector<std::byte> answer(std::min<std::size_t>(client_->limits().max_io_size, 64 * 1024));
  for (;;) {
    wire::ListExports question;
    question.header = wire::header_of(wire::MessageType::list_exports);
    question.first = static_cast<std::uint32_t>(exports.size());
    ControlOperation operation{question, answer};
    if (int error = client_->run_control(operation, interrupt); error != 0) {
      return tl::unexpected(Failure{
          error, std::string{"the server does not list its exports: "} + describe_error(error)});
    }
    auto page = wire::decode_export_page(answer);
    if (page && page->total > kMaxExports) {
      return tl::unexpected(Failure{EOVERFLOW, "the server has " + std::to_string(page->total) +
                                                   " exports, too many to list; name a device"});
    }
    if (!page) return tl::unexpected(nonsense("a malformed list of exports"));
    std::move(page->exports.begin(), page->exports.end(), std::back_inserter(exports));
    if (page->exports.empty() || exports.size() >= page->total) return exports;
  }
}

}  // namespace rnbd
