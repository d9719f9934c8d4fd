// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/librnbd/attachment.hpp"

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include "bridge/client/commands.hpp"
#include "bridge/control/unix_socket.hpp"
#include "rdma/library/options.hpp"
#include "rdma/printable.hpp"

namespace rnbd::library {
namespace {

constexpr unsigned kDepth = 256;
constexpr unsigned kMostDepth = 4096;

tl::unexpected<Failure> wrong(std::string text) {
  return tl::unexpected(Failure{EINVAL, std::move(text)});
}

/// The structure of a caller that was compiled against another version: members that it lacks have
/// their defaults.
tl::expected<rnbd_options, Failure> read_options(const rnbd_options* from) {
  rnbd_options options{};
  if (from == nullptr) return options;
  const auto* const bytes = reinterpret_cast<const unsigned char*>(from);
  bool unknown = from->size < sizeof(from->size);
  for (std::size_t i = sizeof(options); i < from->size && !unknown; ++i) unknown = bytes[i] != 0;
  if (unknown)
    return wrong(
        "the options have a size that this version of librnbd does not know: set `size` to sizeof, "
        "and everything that is not used to 0");
  std::memcpy(&options, from, std::min(from->size, sizeof(options)));
  return options;
}

rtrs::Log log_of(const rnbd_options& options) {
  if (options.log == nullptr) return nullptr;
  return [log = options.log, context = options.log_context](rtrs::LogLevel level,
                                                            const std::string& line) {
    log(context, static_cast<rnbd_log_level>(level), rtrs::on_one_line(line).c_str());
  };
}

}  // namespace

tl::expected<Settings, Failure> read_settings(const char* uri, const rnbd_options* given) {
  const auto options = read_options(given);
  if (!options) return tl::unexpected(options.error());
  if (options->reserved != 0) return wrong("`reserved` of the options is to be 0");
  if (options->depth > kMostDepth)
    return wrong("depth is at most " + std::to_string(kMostDepth) + ", not " +
                 std::to_string(options->depth));
  ConfigReader reader;
  if (auto done = reader.set("uri", uri != nullptr ? uri : ""); !done) return wrong(done.error());
  for (const char* const* each = options->settings; each != nullptr && *each != nullptr; ++each) {
    const std::string_view setting{*each};
    const std::size_t equals = setting.find('=');
    if (equals == setting.npos)
      return wrong("a setting is KEY=VALUE, not '" + rtrs::on_one_line(std::string{setting}) + "'");
    auto done = reader.set(setting.substr(0, equals), setting.substr(equals + 1));
    if (!done) return wrong(done.error());
  }
  auto config = reader.complete();
  if (!config) return wrong(config.error());
  if (config->dynamic_export)
    return wrong("dynamic-export= is for programs with clients of their own; name the disk");
  config->event_loops = true;
  if (config->lanes == 0) config->lanes = 1;
  return Settings{*std::move(config), options->depth != 0 ? options->depth : kDepth,
                  log_of(*options)};
}

// ---- Attachment ---------------------------------------------------------------------------------

tl::expected<std::shared_ptr<Attachment>, Failure> Attachment::make(Settings settings) {
  const std::shared_ptr<Attachment> made{new Attachment{std::move(settings)}};
  if (auto opened = made->open_control(); !opened) return tl::unexpected(opened.error());
  return made;
}

Attachment::Attachment(Settings settings)
    : settings_{std::move(settings)}, connections_{settings_.config, settings_.log} {}

Attachment::~Attachment() {
  control_.reset();
  connections_.leave();
}

tl::expected<void, Failure> Attachment::open_control() {
  const std::string& path = settings_.config.control;
  if (path.empty()) return {};
  if (const std::string wrong_place = complaint_about_socket_place(path); !wrong_place.empty())
    return wrong(wrong_place);
  commands_ = std::make_unique<ControlCommands>(client_commands(settings_.config, connections_));
  auto control = ControlSocket::open(path, [this](std::string_view line, ControlCaller caller) {
    return commands_->answer(line, caller);
  });
  if (!control) return tl::unexpected(Failure{EAGAIN, control.error()});
  control_ = *std::move(control);
  return {};
}

tl::expected<std::unique_ptr<Place>, Failure> Attachment::open() {
  auto opened = connections_.open(settings_.config, /*readonly=*/false, {});
  if (!opened) return tl::unexpected(opened.error());
  const std::lock_guard lock{mutex_};
  try {
    if (used_.empty()) used_.resize((*opened)->lane_source()->lanes());
    const auto free = std::ranges::find(used_, false);
    if (free == used_.end()) {
      connections_.close(*opened);
      return tl::unexpected(
          Failure{ENOSPC, "each of the session's " + std::to_string(used_.size()) +
                              " lanes has its user; open the disk with a larger lanes="});
    }
    const auto lane = static_cast<unsigned>(free - used_.begin());
    std::unique_ptr<Place> place{new Place{shared_from_this(), **opened, lane}};
    *free = true;
    return place;
  } catch (...) {
    connections_.close(*opened);
    throw;
  }
}

tl::expected<Disk*, Failure> Attachment::observe(const Interrupt& interrupt) {
  auto opened = connections_.open(settings_.config, /*readonly=*/true, interrupt);
  if (opened) (*opened)->only_observe();
  return opened;
}

// ---- Place --------------------------------------------------------------------------------------

Place::Place(std::shared_ptr<Attachment> attachment, Disk& disk, unsigned lane)
    : attachment_{std::move(attachment)},
      disk_{disk},
      lane_{lane},
      source_{disk.lane_source()},
      loop_{source_->take_lane(lane)} {}

Place::~Place() {
  loop_.reset();
  source_.reset();
  attachment_->close(&disk_);
  const std::lock_guard lock{attachment_->mutex_};
  attachment_->used_[lane_] = false;
}

}  // namespace rnbd::library
