#include "worker/checkpoint/container/shows_writes.h"

#include <linux/magic.h>
#include <stddef.h>
#include <sys/vfs.h>

#include "base/status.h"

bool ctw_file_shows_writes(int fd)
{
    static const unsigned long known[] = {
        EXT4_SUPER_MAGIC,      XFS_SUPER_MAGIC, BTRFS_SUPER_MAGIC,    F2FS_SUPER_MAGIC,
        OVERLAYFS_SUPER_MAGIC, SQUASHFS_MAGIC,  EROFS_SUPER_MAGIC_V1, ISOFS_SUPER_MAGIC};
    struct statfs system;
    if (fstatfs(fd, &system) != 0)
        return false;
    for (size_t i = 0; i < CTW_COUNT(known); i++)
        if ((unsigned long)system.f_type == known[i])
            return true;
    return false;
}
