// SPDX-License-Identifier: BSD-3-Clause
// How the devices of a session are opened and shared.
#include <algorithm>
#include <array>
#include <cerrno>
#include <optional>
#include <utility>

#include "bridge/client/interruptible_wait.hpp"
#include "bridge/client/questions.hpp"
#include "bridge/client/session.hpp"
#include "bridge/protocol/printable.hpp"
#include "bridge/protocol/uuid.hpp"

namespace rnbd {
namespace {

/// The user's remedy for a refused OPEN.
const char* advice_for(int error) {
  switch (error) {
    case EPERM:
      return "; another client has it open for writing: open it ro, or with access migration "
             "while a machine moves here";
    case EBUSY:
      return "; a program at the server has it in use: stop that, or open it ro";
    case EAGAIN:
      return "; its storage is not there yet, or something hangs that this takes, as the server's "
             "log says: try again later";
    case EIO:
      return "; its storage fails, or there is no room to record who writes to it (a full state "
             "directory), as the server's log says";
    case EROFS:
      return "; open it ro, or let the server export it for writing";
    case EACCES:
      return "; the server may not write to its storage (open it ro, or let the server do so), or "
             "its operator has evicted this client (rnbd-ctl server readmit lets it in again)";
    default:
      return "";
  }
}

/// A reason of the server takes the place of advice; the names of writers go with it.
Failure refused(const std::string& device, wire::AccessMode access, int error,
                const wire::WhoAnswer& reason = {}) {
  const std::string why = on_one_line(reason.text);
  return {error, "the server cannot open " + in_quotes(device) + " (" + wire::to_string(access) +
                     "): " + describe_error(error) +
                     (reason.refused ? "; " + why : advice_for(error) + in_brackets(why))};
}

Failure in_other_mode(const ClientDevice& device, wire::AccessMode asked) {
  return {EBUSY, in_quotes(device.name) + " is open here in access mode " +
                     wire::to_string(device.options.access) + "; it cannot be opened " +
                     wire::to_string(asked) + " until its users have left"};
}

/// Ends a question when its caller leaves, or when no answer is possible.
struct WhileAnswerable {
  const Interrupt& asker;
  const Session& session;
  static bool ended(void* context) {
    const auto& self = *static_cast<const WhileAnswerable*>(context);
    return self.asker() || !self.session.has_path();
  }
  Interrupt interrupt() { return {&ended, this}; }
};

}  // namespace

/// Becomes a user of the mapping of that name; `created` means that the caller has to open it.
tl::expected<std::shared_ptr<Session::Mapping>, Failure> Session::join(const std::string& device,
                                                                       const OpenOptions& options,
                                                                       const Interrupt& interrupt,
                                                                       bool& created) {
  const auto interrupted = [&] {
    return tl::unexpected(
        Failure{EINTR, "interrupted while " + in_quotes(device) + " was being opened"});
  };
  std::unique_lock lock{mutex_};
  for (;;) {
    DeviceTable::Joined joined;
    const auto settled = [&] {
      joined = table_.join(device, options);
      return joined.what != DeviceTable::Join::wait;
    };
    if (!interruptible_wait(changed_, lock, interrupt, settled)) return interrupted();
    auto mapping = std::static_pointer_cast<Mapping>(std::move(joined.device));
    switch (joined.what) {
      case DeviceTable::Join::read_only:
        return tl::unexpected(refused(device, options.access, EROFS));
      case DeviceTable::Join::busy:
        return tl::unexpected(in_other_mode(*mapping, options.access));
      case DeviceTable::Join::close: {
        lock.unlock();
        const int error = close_at_server(*mapping, interrupt);
        end_closing(*mapping, error);
        if (error == EINTR) return interrupted();
        if (error != 0) return tl::unexpected(not_opened(*mapping, error));
        lock.lock();
        continue;
      }
      default:
        created = joined.what == DeviceTable::Join::open;
        return mapping;
    }
  }
}

tl::expected<void, Failure> Session::finish_opening(Mapping& mapping, const Interrupt& interrupt) {
  // However this ends: others may be waiting for the outcome.
  auto fetched = fetch_geometry(mapping, interrupt);
  if (fetched) return fetched;
  const bool answered = fetched.error().error != EINTR && fetched.error().error != EIO;
  bool half_open = false;
  {
    std::lock_guard lock{mutex_};
    half_open = table_.not_opened(mapping, answered);
    changed_.notify_all();
  }
  if (half_open) close_for_good(mapping);
  return fetched;
}

tl::expected<void, Failure> Session::fetch_geometry(Mapping& mapping, const Interrupt& interrupt) {
  for (;;) {
    auto geometry = ask_geometry(mapping, interrupt);
    const bool final = (!geometry && geometry.error().error == EINTR) || !alive();
    std::lock_guard lock{mutex_};
    if (table_.asks_again(mapping) && !final) continue;
    if (!geometry) return tl::unexpected(geometry.error());
    table_.opened(mapping, *geometry);
    changed_.notify_all();
    return {};
  }
}

tl::expected<DeviceGeometry, Failure> Session::ask_geometry(Mapping& mapping,
                                                            const Interrupt& interrupt) {
  std::array<std::byte, sizeof(wire::OpenResponse)> answer{};
  if (int error = ask_open(mapping, answer, interrupt); error != 0) {
    return tl::unexpected(not_opened(mapping, error, reason_for(error, mapping.name, interrupt)));
  }
  auto opened = wire::decode<wire::OpenResponse>(answer, wire::MessageType::open_response);
  if (!opened) return tl::unexpected(nonsense_from_server("a malformed answer to OPEN"));
  std::optional<rtrs::SessionLimits> limits;
  {
    std::lock_guard lock{mutex_};
    limits = table_.take_id(mapping, opened->device_id);
  }
  if (!limits) return tl::unexpected(not_opened(mapping, EIO));  // the caller asks again

  wire::DeviceInfoResponse info;
  const bool asks = (limits->features & rtrs::wire::kFeatureUserMessages) != 0;
  if (asks) {
    const auto [error, told] = ask_device_info(*client_, mapping.handle, interrupt);
    if (error != 0 || !told) {
      close_in_passing(mapping);
      if (error == 0) return tl::unexpected(nonsense_from_server("a malformed device info"));
      return tl::unexpected(not_opened(mapping, error));
    }
    info = *told;
  }
  auto geometry = make_geometry(*opened, asks ? &info : nullptr, *limits, mapping.options.geometry);
  if (!geometry) {
    close_in_passing(mapping);
    return tl::unexpected(nonsense_from_server(geometry.error()));
  }
  geometry->read_only = geometry->read_only || mapping.options.export_read_only;
  return *geometry;
}

Session::Known Session::known_of(const Mapping& mapping) const {
  std::lock_guard lock{mutex_};
  return {mapping.geometry, mapping.claimed, !mapping.loss.empty(), mapping.witness,
          table_.volatile_epoch()};
}

bool Session::covers(const Mapping& mapping, const Witness& seen) const {
  std::lock_guard lock{mutex_};
  return mapping.claim(seen) == Mapping::Claim::covered;
}

/// Asks for the present size of an open device. Only servers with the extension are asked; while
/// there is no path, or no answer, it stays as large as it was.
tl::expected<DeviceGeometry, Failure> Session::look_again(Mapping& mapping,
                                                          const Interrupt& interrupt) {
  if (!has_extensions() || !has_path()) return known_of(mapping).geometry;
  WhileAnswerable patience{interrupt, *this};
  const auto [error, told] = ask_device_info(*client_, mapping.handle, patience.interrupt());
  if (error == EINTR && interrupt()) {
    return tl::unexpected(
        Failure{EINTR, "interrupted while " + in_quotes(mapping.name) + " was being opened"});
  }
  if (error != 0) return known_of(mapping).geometry;
  if (!told) return tl::unexpected(nonsense_from_server("a malformed device info"));
  std::lock_guard lock{mutex_};
  mapping.look_again(*told);
  return mapping.geometry;
}

int Session::ask_open(Mapping& mapping, rtrs::MutableBytes answer, const Interrupt& interrupt) {
  std::unique_ptr<rtrs::Operation> operation;
  {
    std::lock_guard lock{mutex_};
    operation = table_.open(mapping, answer);
  }
  const int error = client_->run_control(*operation, interrupt);
  std::lock_guard lock{mutex_};
  table_.open_ended(mapping, /*final=*/error == EINTR);
  return error;
}

Failure Session::not_opened(const Mapping& mapping, int error,
                            const wire::WhoAnswer& reason) const {
  if (!alive()) return {error, failure()};
  const std::string trouble = error == EIO ? trouble_with(client_->paths()) : "";
  if (!trouble.empty()) return {error, "no path to the server works: " + trouble};
  return refused(mapping.name, mapping.options.access, error, reason);
}

std::vector<DeviceStatus> Session::devices() const {
  std::vector<DeviceStatus> devices;
  const auto describe = [&](const ClientDevice& mapping) {
    if (mapping.state != ClientDevice::State::open || mapping.users == 0) return;
    const bool read_only =
        mapping.options.access == wire::AccessMode::read_only || mapping.geometry.read_only;
    devices.push_back({mapping.name, mapping.geometry.size, read_only,
                       uuid_text(mapping.geometry.export_uuid),
                       mapping.users - std::min<unsigned>(mapping.users, mapping.observers),
                       mapping.loss, mapping.geometry.shrunk});
  };
  std::lock_guard lock{mutex_};
  for (const auto& [name, mapping] : table_.devices()) describe(*mapping);
  lost_.for_each(describe);
  return devices;
}

std::string trouble_with(const std::vector<rtrs::PathStatus>& paths) {
  std::string trouble;
  for (const rtrs::PathStatus& path : paths) {
    if (path.state == rtrs::PathState::connected) return "";
    if (trouble.empty()) trouble = path.trouble;
  }
  return trouble;
}

}  // namespace rnbd
