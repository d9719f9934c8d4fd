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

#include "bridge/backend/brick/worker.hpp"
#include "bridge/backend/brick_queue.hpp"
#include "bridge/backend/specification.hpp"

namespace rnbd {
namespace {

using brick::kBlockSize;

constexpr std::uint64_t kMostBlocks = std::uint64_t{1} << 30;
/// Maps of one session. When other sessions need the memory, unused maps are recalled.
constexpr std::uint32_t kMostMaps = 4096;

/// The journal's file.
class DiskFile final : public brick::MetaFile {
 public:
  explicit DiskFile(rtrs::OwnedFd fd) : fd_{std::move(fd)} {}

  std::uint64_t size() const override {
    const off_t end = lseek(fd_.get(), 0, SEEK_END);
    return end < 0 ? 0 : static_cast<std::uint64_t>(end);
  }
  int read(std::uint64_t offset, std::span<std::byte> bytes) override {
    for (std::size_t at = 0; at < bytes.size();) {
      const ssize_t got =
          pread(fd_.get(), bytes.data() + at, bytes.size() - at, static_cast<off_t>(offset + at));
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) return got < 0 ? errno : EIO;
      at += static_cast<std::size_t>(got);
    }
    return 0;
  }
  int write(std::uint64_t offset, std::span<const std::byte> bytes) override {
    for (std::size_t at = 0; at < bytes.size();) {
      const ssize_t put =
          pwrite(fd_.get(), bytes.data() + at, bytes.size() - at, static_cast<off_t>(offset + at));
      if (put < 0 && errno == EINTR) continue;
      if (put <= 0) return put < 0 ? errno : EIO;
      at += static_cast<std::size_t>(put);
    }
    return 0;
  }
  int sync() override { return fdatasync(fd_.get()) == 0 ? 0 : errno; }

 private:
  rtrs::OwnedFd fd_;
};

struct BrickParts {
  std::uint64_t memory = 0;  ///< bytes
  std::string tier;
  std::string meta;
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
    else
      return wrong("'" + std::string{option} + "' is no option; there are file=TIER and meta=PATH");
  }
  if (parts.tier.empty() && !parts.meta.empty())
    return wrong(
        "meta=PATH is for a brick with file=TIER; plain memory does not outlive the server");
  if (!parts.tier.empty() && parts.meta.empty()) parts.meta = parts.tier + ".brick";
  return parts;
}

/// Opens and locks.
tl::expected<rtrs::OwnedFd, Failure> open_part(const std::string& path, int flags,
                                               const BackendOptions& options) {
  rtrs::OwnedFd fd{open(path.c_str(), flags | O_CLOEXEC, 0600)};
  const auto failed = [&](int error, const std::string& what_to_do) {
    return bad_specification(error, path, std::string{std::strerror(error)} + "; " + what_to_do);
  };
  if (!fd) {
    const int error = errno;
    return failed(error, error == ENOENT ? "make it first, like: truncate -s 1G " + path
                                         : "let the server's user read and write it");
  }
  if (options.lock && flock(fd.get(), LOCK_EX | LOCK_NB) != 0)
    return failed(EBUSY, "another program has it open; end that one first");
  return fd;
}

tl::expected<void, Failure> open_journal(const BrickParts& parts, std::uint32_t places,
                                         brick::BrickFiles& files, const BackendOptions& options) {
  struct stat found {};
  const bool missing = stat(parts.meta.c_str(), &found) != 0 || found.st_size == 0;
  if (missing && !options.make_files) return {};
  auto fd = open_part(parts.meta, O_RDWR | O_CREAT, options);
  if (!fd) return tl::unexpected(fd.error());
  files.meta_file = std::make_unique<DiskFile>(std::move(*fd));
  files.journal = std::make_unique<brick::Journal>(*files.meta_file);
  int error = 0;
  if (files.meta_file->size() == 0) {
    std::array<std::uint8_t, 16> uuid{};
    if (getrandom(uuid.data(), uuid.size(), 0) < 0) error = errno;
    if (error == 0) error = files.journal->create(places, uuid);
  } else {
    error = files.journal->open(places);
  }
  if (error == 0) return {};
  const char* what_to_do = "look at its file system";
  if (error == EBADMSG)
    what_to_do =
        "it is no journal of a brick, or damaged; name another one with meta=PATH, or "
        "remove it to begin with an empty brick";
  if (error == ENOSPC) what_to_do = "the tier has become smaller than it was; give it its old size";
  return bad_specification(error, parts.meta, what_to_do);
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
  brick::BrickService* brick() override { return service_.get(); }
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
    auto tier = open_part(parts->tier, O_RDWR, options);
    if (!tier) return tl::unexpected(tier.error());
    const off_t end = lseek(tier->get(), 0, SEEK_END);
    blocks = end < 0 ? 0 : static_cast<std::uint64_t>(end) / kBlockSize;
    if (blocks == 0 || blocks > kMostBlocks)
      return bad_specification(EINVAL, parts->tier, "a tier has 2M at least; make it larger");
    files.tier = std::move(*tier);
    const auto opened = open_journal(*parts, static_cast<std::uint32_t>(blocks), files, options);
    if (!opened) return tl::unexpected(opened.error());
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
