// SPDX-License-Identifier: BSD-3-Clause
// The exports that have a name: how they are added, and wait for their storage.
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "bridge/protocol/printable.hpp"
#include "bridge/server/catalogue.hpp"
#include "bridge/server/services.hpp"

namespace rnbd {
namespace {

/// Bytes; a page of the list always has room for one entry.
constexpr std::size_t kMaxDescription = 1024;

/// True if the storage is in use elsewhere. An NBD server for one client at a time does not even
/// answer then.
bool is_in_use(int error) { return error == EBUSY || error == ETIMEDOUT; }

/// The request is impossible. Other troubles may pass while the server serves the other exports: a
/// missing disk, mount, upstream or permission.
bool is_final(int error) {
  return error == EINVAL || error == EISDIR || error == EEXIST || error == ENAMETOOLONG ||
         error == EOPNOTSUPP;
}

std::optional<FileIdentity> identity_of(const std::string& storage) {
  const auto path = path_of(storage);
  struct stat status {};
  FileIdentity identity;
  if (!path || ::stat(path->c_str(), &status) != 0 || !identify(status, identity))
    return std::nullopt;
  return identity;
}

}  // namespace

std::string fault_of_name(std::string_view name) {
  if (name.empty()) return "is empty; give the export a name of 1 to 254 bytes";
  if (name.size() > wire::kMaxDeviceName) {
    return "has " + std::to_string(name.size()) + " bytes; use at most " +
           std::to_string(wire::kMaxDeviceName);
  }
  for (const char c : name) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7F) return "has a control character; use printable characters";
  }
  if (!is_tame(name)) return "has a '.' or '..' component; use a plain name";
  return "";
}

std::string fault_of_description(std::string_view description) {
  if (description.size() > kMaxDescription) {
    return "has " + std::to_string(description.size()) + " bytes; use at most " +
           std::to_string(kMaxDescription);
  }
  for (const char c : description) {
    const auto byte = static_cast<unsigned char>(c);
    if ((byte < 0x20 && c != '\n' && c != '\t') || byte == 0x7F)
      return "has a control character; use printable characters";
  }
  return "";
}

// ---- Adding -------------------------------------------------------------------------------------

tl::expected<void, Failure> ExportCatalogue::add(const ExportSpecification& specification) {
  const std::string& name = specification.name;
  const auto fail = [&](int error, const std::string& text) {
    return tl::unexpected(Failure{error, "export " + in_quotes(name) + text});
  };
  const std::string fault = fault_of_name(name);
  if (!fault.empty()) return fail(EINVAL, ": the name " + fault);
  const std::string description_fault = fault_of_description(specification.description);
  if (!description_fault.empty()) return fail(EINVAL, ": the description " + description_fault);
  if (has(name)) return fail(EEXIST, " is there twice; give each export a name of its own");

  auto storage = open_for_export(specification);
  if (!storage && is_final(storage.error().error)) {
    return fail(storage.error().error, ": " + storage.error().text);
  }
  Named& named = named_.emplace(name, Named{{}, {}, specification}).first->second;
  named.limits->set(specification.limits);
  if (storage) {
    serve(named, std::move(*storage), specification);
  } else {
    waiting_.emplace(name, Waiting{specification, storage.error()});
  }
  return {};
}

/// A file of the search path is not locked for readers only, and does not stay open.
tl::expected<std::shared_ptr<Storage>, Failure> ExportCatalogue::open_for_export(
    const ExportSpecification& specification) {
  const auto identity = identity_of(specification.storage);
  if (identity) {
    const auto known = storages_.already_open(*identity, !specification.read_only);
    if (known != nullptr && (known->permanent() || !known->geometry().read_only)) return known;
    const auto reader =
        specification.read_only ? nullptr : storages_.already_open(*identity, false);
    if (reader != nullptr && reader->permanent()) {
      return tl::unexpected(
          Failure{EEXIST, specification.storage +
                              " is already exported read-only under another name; put the writable "
                              "export before the read-only one"});
    }
    if (specification.read_only && is_awaited_by_writer(*identity)) {
      return tl::unexpected(Failure{EBUSY, specification.storage +
                                               ": a writable export of it waits for it, and "
                                               "comes first"});
    }
  }
  BackendOptions options = storages_.backend_options(specification.read_only);
  options.direct |= specification.direct;
  return storages_.open(specification.storage, options, identity);
}

/// A reader that opened it would keep that export from it.
bool ExportCatalogue::is_awaited_by_writer(const FileIdentity& identity) const {
  std::vector<std::string> awaited;
  {
    const std::lock_guard lock{mutex_};
    for (const auto& [name, waiting] : waiting_) {
      if (!waiting.specification.read_only) awaited.push_back(waiting.specification.storage);
    }
  }
  return std::ranges::any_of(awaited,
                             [&](const auto& storage) { return identity_of(storage) == identity; });
}

void ExportCatalogue::announce(const ExportSpecification& specification,
                               const Storage& storage) const {
  const auto path = path_of(specification.storage);
  if (!options_.on_served || !path || specification.read_only) return;
  options_.on_served(specification.name, *path, storage.backend().info().uuid);
}

/// The export may be narrower than the storage.
void ExportCatalogue::serve(Named& named, std::shared_ptr<Storage> storage,
                            const ExportSpecification& specification) {
  const Geometry geometry = geometry_of(storage->backend().info(), specification.read_only).value();
  announce(specification, *storage);
  const std::lock_guard lock{mutex_};
  if (named.removed) return;
  named.geometry = geometry;
  named.storage = std::move(storage);
  named.path_leads = PathLeads::unknown;
  named.space.reset();
  named.lost.clear();
}

// ---- Exports that wait for their storage
// ----------------------------------------------------------

/// Without the lock under which files of the search path are opened, so that a hanging storage does
/// not keep these closed. A client that opens the same file in the same moment may find it in use.
bool ExportCatalogue::open_waiting() {
  const std::lock_guard admin{admin_mutex_};
  bool news = files_.try_again();
  for (const bool read_only : {false, true}) {  // a reader waits for a writer of the same file
    for (auto next = waiting_.begin(); next != waiting_.end();) {
      const auto each = next++;
      Waiting& waiting = each->second;
      if (waiting.specification.read_only != read_only) continue;
      news |= try_waiting(waiting);
      if (waiting.why.error != 0) continue;
      const std::lock_guard lock{mutex_};
      waiting_.erase(each);
    }
  }
  return news;
}

/// True: there is something to tell.
bool ExportCatalogue::try_waiting(Waiting& waiting) {
  const ExportSpecification& specification = waiting.specification;
  auto storage = open_for_export(specification);
  if (storage) {
    serve(named_.find(specification.name)->second, std::move(*storage), specification);
  }
  const Failure why = storage ? Failure{} : storage.error();
  const std::lock_guard lock{mutex_};
  return std::exchange(waiting.why, why).text != why.text;
}

bool ExportCatalogue::waits() const {
  {
    const std::lock_guard lock{mutex_};
    if (!waiting_.empty()) return true;
  }
  return !files_.trouble().empty();
}

/// The errno for an OPEN of it.
int ExportCatalogue::why_not_open(std::string_view name) const {
  const std::lock_guard lock{mutex_};
  const auto found = waiting_.find(name);  // if it is not there, it is open now
  return found != waiting_.end() && is_in_use(found->second.why.error) ? EBUSY : EAGAIN;
}

std::vector<std::pair<std::string, std::shared_ptr<Storage>>> ExportCatalogue::storages() const {
  const std::lock_guard lock{mutex_};
  std::vector<std::pair<std::string, std::shared_ptr<Storage>>> all;
  for (const auto& [name, entry] : named_) {
    if (entry.storage != nullptr) all.emplace_back(name, entry.storage);
  }
  return all;
}

std::shared_ptr<Throttle> ExportCatalogue::throttle_of(std::string_view name) const {
  const std::lock_guard lock{mutex_};
  const auto found = named_.find(name);
  return found != named_.end() ? found->second.throttle : nullptr;
}

void ExportCatalogue::lift_limits() {
  const std::lock_guard lock{mutex_};
  for (auto& [name, entry] : named_) entry.limits->set({});
  for (auto& node : removed_) node.mapped().limits->set({});
}

std::vector<ExportStatus> ExportCatalogue::exports() const {
  const std::lock_guard lock{mutex_};
  std::vector<ExportStatus> all;
  all.reserve(named_.size());
  for (const auto& [name, entry] : named_) {
    if (entry.specification.hidden) continue;
    Geometry now = entry.geometry;
    if (entry.storage != nullptr) {
      grow(now, entry.storage->backend().present_size());
    } else {
      now.size = 0;
    }
    all.push_back({name, now.size, now.read_only, entry.lost, false, entry.limits->get(),
                   entry.throttle->reading()});
    if (entry.storage != nullptr) {
      all.back().shrunk_to = entry.storage->backend().shrunk_to();
      all.back().displaced = displacement_of(entry);
      all.back().space = entry.space;
      all.back().uuid = entry.geometry.uuid;
    }
    const auto found = waiting_.find(name);
    if (found == waiting_.end()) continue;
    const Waiting& waiting = found->second;
    all.back().read_only = waiting.specification.read_only;
    all.back().trouble = waiting.why.text;
    all.back().in_use = is_in_use(waiting.why.error);
  }
  return all;
}

}  // namespace rnbd
