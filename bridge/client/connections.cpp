// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/client/connections.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <string_view>
#include <thread>
#include <unordered_set>
#include <utility>

#include "bridge/client/annex.hpp"
#include "bridge/protocol/closest.hpp"
#include "bridge/protocol/printable.hpp"
#include "bridge/protocol/uuid.hpp"

namespace rnbd {
namespace {

/// An export that the user may see, and may have meant. "": none.
std::string export_like(Session& session, const std::string& device, const Interrupt& interrupt) {
  constexpr std::size_t kMostNames = 1000;  // it takes a millisecond then
  const auto exports = session.directory().exports(interrupt);
  std::vector<std::string> names;
  for (std::size_t i = 0; exports && i < std::min(exports->size(), kMostNames); ++i) {
    names.push_back((*exports)[i].name);
  }
  return closest(device, names);
}

}  // namespace

Connections::Connections(const ClientConfig& config, rtrs::Log log)
    : config_{config}, log_{std::move(log)}, shared_{config, log_} {
  for (const ClientAnnex* annex : client_annexes()) {
    if (annex->source != nullptr && source_ == nullptr) source_ = annex->source(config_, log_);
    if (annex->wrapper != nullptr && wrapper_ == nullptr) wrapper_ = annex->wrapper(config_, log_);
  }
}

Connections::~Connections() = default;

Failure Connections::named(Failure failure) const {
  failure.text = config_.server() + ": " + failure.text;
  return failure;
}

tl::expected<std::vector<wire::ExportName>, Failure> Connections::exports(
    const Interrupt& interrupt) {
  auto session = shared_.get(interrupt);
  if (!session) return tl::unexpected(named(session.error()));
  auto exports = (*session)->directory().exports(interrupt);
  if (!exports) return tl::unexpected(named(exports.error()));
  return exports;
}

tl::expected<std::vector<wire::ExportName>, Failure> Connections::present(
    const Interrupt& interrupt) {
  auto names = exports(interrupt);
  if (!names) return names;
  const auto entries = directory(interrupt);
  if (!entries) return names;  // an older server
  std::unordered_set<std::string_view> waiting;
  for (const wire::DirectoryEntry& entry : *entries) {
    if (entry.waiting) waiting.insert(entry.name);
  }
  std::erase_if(*names, [&](const wire::ExportName& each) { return waiting.contains(each.name); });
  return names;
}

tl::expected<std::vector<wire::DirectoryEntry>, Failure> Connections::directory(
    const Interrupt& interrupt, std::uint32_t kinds) {
  auto session = shared_.get(interrupt);
  if (!session) return tl::unexpected(named(session.error()));
  auto entries = (*session)->directory().entries(interrupt, kinds);
  if (!entries) return tl::unexpected(named(entries.error()));
  return entries;
}

std::string Connections::who(const std::string& device, const Interrupt& interrupt) {
  auto session = shared_.get(interrupt);
  return session ? (*session)->directory().who(device, interrupt).text : std::string{};
}

tl::expected<std::string, Failure> Connections::default_device(const Interrupt& interrupt) {
  if (!config_.device.empty()) return config_.device;
  auto all = exports(interrupt);
  if (!all) {
    all.error().text = "the client named no export, and " + all.error().text;
    return tl::unexpected(all.error());
  }
  if (all->size() == 1) return all->front().name;
  return tl::unexpected(
      named({ENOENT,
             "the client named no export, and there are " + std::to_string(all->size()) +
                 "; name one in the NBD URI, or name the device for all clients when this program "
                 "is started"}));
}

/// Another client may write to it. Perhaps it leaves in this moment. Otherwise this one reads only,
/// so that attaching a disk in use fails now, and not at its first write.
tl::expected<void, Failure> Connections::wait_for_writer(RemoteDevice& device, Absent absent,
                                                         const Interrupt& interrupt) {
  const std::chrono::seconds moment{absent == Absent::refused_at_once ? 0 : 1};
  constexpr std::chrono::milliseconds kPause{50};
  const auto deadline = std::chrono::steady_clock::now() + moment;
  const std::uint64_t seen = device.sight();
  while (device.in_use() && !interrupt()) {
    // The server may not have noticed yet that our last session died with this device open.
    const bool may_be_ours = shared_.replaced_lately();
    const bool writes_on = device.sight() != seen;
    if (!may_be_ours && (writes_on || std::chrono::steady_clock::now() >= deadline)) break;
    std::this_thread::sleep_for(kPause);
    if (auto looked = device.look_again(interrupt); !looked) return looked;
  }
  if (!device.in_use()) return {};
  device.refuse_changes();
  if (log_) {
    log_(rtrs::LogLevel::warning, in_quotes(device.name()) +
                                      ": another client writes to it, so this one may only read; "
                                      "connect anew when that one has left, or with access "
                                      "migration while a machine moves here");
  }
  return {};
}

Failure Connections::advised(Failure failure) const {
  const bool unknown = failure.error == ENOENT || failure.error == ENXIO;
  if (unknown && !config_.how_to_list.empty()) {
    failure.text += "; see what the server exports, but for what is below its search path: " +
                    config_.how_to_list;
  }
  return failure;
}

/// Reports the referral but does not follow it: the other server may be less safe, or have another
/// owner.
Failure Connections::referred(Session& session, const std::string& device, Failure failure,
                              const Interrupt& interrupt) const {
  if (failure.error != ENOENT) return advised(std::move(failure));
  const std::string uri = session.directory().referral(device, interrupt);
  if (!uri.empty()) {
    failure.text += "; the server says that it is elsewhere: use " + on_one_line(uri);
    return failure;
  }
  const std::string similar = export_like(session, device, interrupt);
  if (!similar.empty()) {
    failure.text += "; the most similar name of an export there is " + in_quotes(similar);
  }
  return advised(std::move(failure));
}

tl::expected<std::unique_ptr<RemoteDevice>, Failure> Connections::open_in(
    Session& session, const DiskConfig& wanted, bool readonly, const Interrupt& interrupt,
    Absent& absent) {
  constexpr std::chrono::milliseconds kPause{250};
  constexpr std::chrono::seconds kLongPause{1};  // as the server looks, which logs each refusal
  OpenOptions options;
  options.geometry = wanted.geometry;
  options.uuid = wanted.uuid;
  options.access =
      readonly ? wire::AccessMode::read_only : wanted.access.value_or(wire::AccessMode::read_write);
  options.unclaimed = !readonly && !wanted.access;
  const auto deadline = std::chrono::steady_clock::now() + config_.connect_timeout;
  const bool patient = absent == Absent::awaited;
  for (;;) {
    auto opened = session.open(wanted.device, options, interrupt);
    if (opened) {
      if (!options.unclaimed || readonly) return opened;
      auto waited = wait_for_writer(**opened, absent, interrupt);
      if (!waited) return tl::unexpected(waited.error());
      return opened;
    }
    const int error = opened.error().error;
    // EBUSY: a program at the server has the file.
    if ((error == EROFS || error == EBUSY) && !readonly && !wanted.access) {
      options.access = wire::AccessMode::read_only;
      options.unclaimed = false;
      options.export_read_only = error == EROFS;
      readonly = true;
      continue;
    }
    // The server may not have noticed yet that our last session died with this device open.
    const bool may_be_ours = error == EPERM && shared_.replaced_lately();
    const bool in_time = std::chrono::steady_clock::now() < deadline;
    // Others have waited long for a path, but a new client has not.
    const bool may_come_back = error == EIO && !session.has_path() && in_time;
    // Its storage is not available yet, or is in use elsewhere.
    const bool may_come = patient && (error == EAGAIN || error == EBUSY) && in_time;
    if ((!may_be_ours && !may_come_back && !may_come) || interrupt()) {
      return tl::unexpected(referred(session, wanted.device, opened.error(), interrupt));
    }
    if (may_come && std::exchange(absent, Absent::refused) == Absent::awaited && log_) {
      log_(rtrs::LogLevel::warning,
           named(opened.error()).text + "; it is tried again until connect-timeout has passed");
    }
    std::this_thread::sleep_for(may_come ? kLongPause : kPause);
  }
}

tl::expected<Disk*, Failure> Connections::open(const std::string& name, bool readonly,
                                               const Interrupt& interrupt, Absent& absent) {
  DiskConfig wanted = config_;
  if (config_.dynamic_export) wanted.device = name;
  if (wanted.device.empty()) {
    auto chosen = default_device(interrupt);
    if (!chosen) return tl::unexpected(chosen.error());
    wanted.device = *chosen;
  }
  return open(wanted, readonly, interrupt, absent);
}

tl::expected<Disk*, Failure> Connections::open(const DiskConfig& wanted, bool readonly,
                                               const Interrupt& interrupt, Absent& absent) {
  if (source_ != nullptr) {
    auto opened = source_->open(readonly, interrupt);
    if (!opened) return tl::unexpected(named(opened.error()));
    return keep(*std::move(opened));
  }
  auto session = shared_.get(interrupt);
  if (!session) return tl::unexpected(named(session.error()));
  auto opened = open_in(**session, wanted, readonly, interrupt, absent);
  if (!opened) return tl::unexpected(named(opened.error()));
  if (wrapper_ != nullptr) return keep(wrapper_->wrap(**session, *std::move(opened), interrupt));
  return keep(*std::move(opened));
}

Disk* Connections::keep(std::unique_ptr<Disk> disk) {
  Disk* const handle = disk.get();
  const std::lock_guard lock{mutex_};
  open_.emplace(handle, std::move(disk));
  return handle;
}

SessionStatus Connections::status() {
  return source_ != nullptr ? source_->status() : shared_.status();
}

void Connections::close(Disk* disk) {
  std::unique_ptr<Disk> last;  // destroyed without the lock: it talks to the server
  std::lock_guard lock{mutex_};
  auto found = open_.find(disk);
  if (found == open_.end()) return;
  last = std::move(found->second);
  open_.erase(found);
}

std::string Connections::describe(const Disk& disk) const {
  const std::string uuid = uuid_text(disk.geometry().export_uuid);
  return disk.name() + " at " + config_.server() + " (" + disk.access_in_words() + ")" +
         (uuid.empty() ? "" : ", UUID " + uuid);
}

tl::expected<void, Failure> Connections::probe() {
  if (source_ != nullptr) {
    auto probed = source_->probe();
    if (!probed) return tl::unexpected(named(probed.error()));
    return {};
  }
  auto session = shared_.connect_for_probe();
  if (!session) return tl::unexpected(named(session.error()));
  if (config_.device.empty()) return {};
  const bool readonly =
      config_.access.value_or(wire::AccessMode::read_only) == wire::AccessMode::read_only;
  Absent absent = Absent::awaited;
  auto device = open_in(**session, config_, readonly, {}, absent);
  if (!device) return tl::unexpected(named(device.error()));
  return {};
}

tl::expected<void, Failure> Connections::attach() {
  if (source_ == nullptr) return probe();
  auto opened = source_->open(/*readonly=*/true, {});  // the source stays when its user leaves
  if (!opened) return tl::unexpected(named(opened.error()));
  return {};
}

void Connections::leave() {
  shared_.leave();
  std::unordered_map<Disk*, std::unique_ptr<Disk>> left;
  {
    const std::lock_guard lock{mutex_};
    left.swap(open_);
  }
  if (source_ != nullptr) source_->leave();
}

}  // namespace rnbd
