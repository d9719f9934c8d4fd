// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/backend/brick.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <filesystem>

#include "bridge/backend/brick/disk_file.hpp"
#include "bridge/backend/brick/worker.hpp"
#include "bridge/backend/brick_queue.hpp"
#include "bridge/backend/specification.hpp"

namespace rnbd {
namespace {

using brick::kBlockSize;

constexpr std::uint64_t kMostBlocks = std::uint64_t{1} << 30;
/// Maps of one session. When other sessions need the memory, unused maps are recalled.
constexpr std::uint32_t kMostMaps = 4096;

struct BrickParts {
  std::uint64_t memory = 0;  ///< bytes
  std::string tier;
  std::string meta;
  bool begin_new = false;  ///< with an empty brick, although the tier has data
  bool adopt = false;      ///< a tier and a journal that do not match
};

tl::expected<BrickParts, Failure> parse_brick(const std::string& text) {
  const auto wrong = [&](const std::string& what) {
    return bad_specification(EINVAL, "brick:" + text, what);
  };
  BrickParts parts;
  std::string_view rest = text;
  const auto size = parse_size(rest.substr(0, rest.find(',')));
  if (!size) return wrong(size.error().text);
  parts.memory = *size;
  if (parts.memory == 0 || parts.memory % kBlockSize != 0 ||
      parts.memory / kBlockSize > kMostBlocks)
    return wrong("the memory must be a multiple of 2M, like brick:64M");
  for (auto comma = rest.find(','); comma != std::string_view::npos; comma = rest.find(',')) {
    rest.remove_prefix(comma + 1);
    std::string_view option = rest.substr(0, rest.find(','));
    if (strip_prefix(option, "file=") && !option.empty())
      parts.tier = option;
    else if (strip_prefix(option, "meta=") && !option.empty())
      parts.meta = option;
    else if (option == "new")
      parts.begin_new = true;
    else if (option == "adopt")
      parts.adopt = true;
    else
      return wrong("'" + std::string{option} +
                   "' is no option; there are file=TIER, meta=PATH, new and adopt");
  }
  if (parts.tier.empty() && (!parts.meta.empty() || parts.begin_new || parts.adopt))
    return wrong(
        "meta=PATH, new and adopt are for a brick with file=TIER; plain memory does not outlive "
        "the server");
  if (!parts.tier.empty() && parts.meta.empty()) parts.meta = parts.tier + ".brick";
  return parts;
}

/// Opens and locks.
tl::expected<std::unique_ptr<brick::DiskFile>, Failure> open_part(const std::string& path,
                                                                  int flags,
                                                                  const std::string& if_missing,
                                                                  const BackendOptions& options) {
  rtrs::OwnedFd fd{open(path.c_str(), flags | O_CLOEXEC, 0600)};
  const auto failed = [&](int error, const std::string& what_to_do) {
    return bad_specification(error, path, std::string{std::strerror(error)} + "; " + what_to_do);
  };
  if (!fd) {
    const int error = errno;
    return failed(error, error == ENOENT ? if_missing : "let the server's user read and write it");
  }
  if (options.lock && flock(fd.get(), LOCK_EX | LOCK_NB) != 0)
    return failed(EBUSY, "another program has it open; end that one first");
  return std::make_unique<brick::DiskFile>(std::move(fd));
}

/// A new journal would make a tier with data an empty one.
tl::expected<void, Failure> may_begin(const BrickParts& parts, brick::DiskFile& tier) {
  if (parts.begin_new) return {};
  const auto data = tier.has_data();
  if (!data) return bad_specification(data.error(), parts.tier, std::strerror(data.error()));
  if (!*data) return {};
  return bad_specification(
      ENOENT, parts.meta,
      "the tier " + parts.tier +
          " has data, but its journal is not there; mount it, restore it, or name it with "
          "meta=PATH; or add ',new' to begin with an empty brick");
}

/// Makes the name of a new file durable.
int sync_folder_of(const std::string& path) {
  const auto folder = std::filesystem::path{path}.parent_path();
  const rtrs::OwnedFd fd{open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_CLOEXEC)};
  return fd && fsync(fd.get()) == 0 ? 0 : errno;
}

int begin_journal(brick::Journal& journal, const std::string& path, std::uint32_t places) {
  std::array<std::uint8_t, 16> uuid{};
  if (getrandom(uuid.data(), uuid.size(), 0) < 0) return errno;
  const int error = sync_folder_of(path);
  return error != 0 ? error : journal.create(places, uuid);
}

std::string why_no_match(brick::Match match, const BrickParts& parts) {
  const std::string tier = "the tier " + parts.tier;
  switch (match) {
    case brick::Match::unmarked:
      return tier + " lacks the mark of this journal: it is another one, or was cut or overwritten";
    case brick::Match::stranger:
      return tier + " belongs to another journal";
    case brick::Match::older_journal:
      return "this journal is older than " + tier;
    case brick::Match::older_tier:
      return tier + " is older than this journal";
    case brick::Match::yes:
      break;
  }
  return "";
}

/// Reads a journal, and compares it with the tier.
tl::expected<void, Failure> read_journal(const BrickParts& parts, std::uint32_t places,
                                         brick::Journal& journal, const brick::PartFile& file) {
  const auto wrong = [&](int error, const std::string& what_to_do) {
    return bad_specification(error, parts.meta, what_to_do);
  };
  const int error = file.size() == 0 ? EBADMSG : journal.open(places);
  if (error == EBADMSG)
    return wrong(error,
                 "it is no journal of a brick, or damaged; restore it, or name another one with "
                 "meta=PATH, or remove it and add ',new' to begin with an empty brick");
  if (parts.begin_new)
    return wrong(ENOTEMPTY,
                 "a journal is there; leave 'new' out to open its brick, or move it away to begin "
                 "with an empty one");
  if (error == ENOSPC)
    return wrong(error, "the tier has become smaller than it was; give it its old size");
  if (error != 0) return wrong(error, std::string{std::strerror(error)} + "; look at its disk");
  const brick::Match match = journal.match();
  if (parts.adopt && match == brick::Match::yes)
    return wrong(ENOTEMPTY, "it matches its tier; leave 'adopt' out to open the brick");
  if (parts.adopt || match == brick::Match::yes) return {};
  return wrong(ESTALE, why_no_match(match, parts) +
                           "; restore both as they were at one moment, or add ',adopt' to serve "
                           "what these two have, which may be wrong");
}

/// `places` fit into the tier. A new brick has room for the mark, too.
tl::expected<void, Failure> open_journal(const BrickParts& parts, std::uint32_t places,
                                         brick::BrickFiles& files, brick::DiskFile& tier,
                                         const BackendOptions& options) {
  const auto failed = [&](int error) {
    return bad_specification(
        error, parts.meta,
        std::string{std::strerror(error)} + "; look at its disk and at that of the tier");
  };
  struct stat found {};
  const bool missing = stat(parts.meta.c_str(), &found) != 0 && errno == ENOENT;
  const std::uint32_t new_places = brick::has_mark_room(tier, places) ? places : places - 1;
  std::optional<brick::Mark> mark;
  int error = brick::read_mark(tier, new_places, mark);
  if (error != 0) return failed(error);
  if (missing) {
    if (const auto may = may_begin(parts, tier); !may) return may;
    if (!options.make_files) return {};
    if (new_places == 0)
      return bad_specification(EINVAL, parts.tier, "a device needs 4K more than 2M for a tier");
  }
  auto file = open_part(parts.meta, O_RDWR | (missing ? O_CREAT : 0),
                        "make its directory first, or name another file with meta=PATH", options);
  if (!file) return tl::unexpected(file.error());
  files.meta_file = *std::move(file);
  files.journal = std::make_unique<brick::Journal>(*files.meta_file, tier);
  // An empty file was just made, or the server died behind that, before anybody could write.
  bool begins = files.meta_file->size() == 0 && new_places != 0 &&
                (missing || may_begin(parts, tier).has_value());
  if (!begins) {
    const auto read = read_journal(parts, places, *files.journal, *files.meta_file);
    // The server died behind the first mark, with a part of the journal written.
    const bool begun = mark && mark->version == 1 && mark->to_follow;
    begins = begun && !read && read.error().error == EBADMSG;
    if (!begins && !read) return read;
  }
  if (!options.make_files) {
    if (begins) files.journal.reset();
    return {};
  }
  error = begins ? begin_journal(*files.journal, parts.meta, new_places) : files.journal->begin();
  if (error != 0) return failed(error);
  if (!brick::has_mark_room(tier, files.journal->places()) && options.log)
    options.log(rtrs::LogLevel::warning,
                parts.tier +
                    ": the device has no room for a mark behind the last block, so a journal of "
                    "an earlier day would not be noticed");
  return {};
}

class BrickBackend final : public Backend {
 public:
  BrickBackend(std::unique_ptr<brick::BrickService> service, bool read_only)
      : service_{std::move(service)} {
    info_.size = service_->options().places * kBlockSize;
    info_.read_only = read_only;
    info_.can_discard = info_.can_write_zeroes = true;
    info_.can_extents = true;
    info_.can_fua = !service_->has_tier();
    info_.volatile_cache = service_->has_tier();
    info_.discard_granularity = kBlockSize;
    info_.outlives_server = service_->has_tier();
    info_.uuid = service_->uuid();
  }

  const BackendInfo& info() const override { return info_; }
  std::uint32_t life() const override {
    return service_->has_tier() ? static_cast<std::uint32_t>(service_->epoch()) | 1U : 0;
  }
  BackendExtension* extension() override { return service_.get(); }
  std::unique_ptr<BackendQueue> open_queue(rtrs::Reactor* reactor) override {
    return std::make_unique<BrickQueue>(*service_, info_.read_only, *reactor);
  }

 private:
  std::unique_ptr<brick::BrickService> service_;
  BackendInfo info_;
};

}  // namespace

tl::expected<std::unique_ptr<Backend>, Failure> open_brick(const std::string& specification,
                                                           const BackendOptions& options) {
  const auto parts = parse_brick(specification);
  if (!parts) return tl::unexpected(parts.error());
  brick::BrickFiles files;
  brick::BrickOptions sizes;
  std::uint64_t blocks = parts->memory / kBlockSize;
  sizes.slots = static_cast<std::uint32_t>(blocks);
  if (!parts->tier.empty()) {
    auto tier = open_part(parts->tier, O_RDWR, "make it first, like: truncate -s 1G " + parts->tier,
                          options);
    if (!tier) return tl::unexpected(tier.error());
    blocks = (*tier)->size() / kBlockSize;
    if (blocks == 0 || blocks > kMostBlocks)
      return bad_specification(EINVAL, parts->tier, "a tier has 2M at least; make it larger");
    const auto opened =
        open_journal(*parts, static_cast<std::uint32_t>(blocks), files, **tier, options);
    if (!opened) return tl::unexpected(opened.error());
    files.tier = *std::move(tier);
    if (files.journal != nullptr) blocks = files.journal->places();
  }
  sizes.places = static_cast<std::uint32_t>(blocks);
  sizes.slots = std::min(sizes.slots, sizes.places);
  sizes.max_maps = std::min(sizes.slots, kMostMaps);
  files.memory = brick::BrickMemory::map(sizes.slots, sizes.places);
  if (files.memory == nullptr)
    return bad_specification(ENOMEM, "brick:" + specification,
                             "the system does not give that much memory; choose a smaller size");
  try {
    return std::make_unique<BrickBackend>(
        std::make_unique<brick::BrickWorker>(sizes, std::move(files), options.log),
        options.read_only);
  } catch (const std::exception&) {
    return bad_specification(EAGAIN, "brick:" + specification,
                             "the system gives no more threads; raise its limit of tasks");
  }
}

}  // namespace rnbd
