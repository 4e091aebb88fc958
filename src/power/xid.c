/* The table of Xid codes. Sources: the meanings are those of NVIDIA's Xid catalog (docs.nvidia.com/deploy/xid-errors)
 * and of nverror.h in its open kernel modules. Which are the application's: the list in NVIDIA's Kubernetes device
 * plugin (internal/rm/health.go), which leaves a device in service after 13, 31, 43, 45, 68 and 109. Which need a
 * reset: the catalog's immediate actions RESET_GPU, RESTART_BM and the workflow for 48.
 *
 * Three that are often taken for a loss of the device are none: 63 records that a faulty row of memory will be remapped
 * at the next reset (64, that this failed, is one), 92 counts errors which were corrected, and 94 says that an
 * uncorrectable error was contained in one program; yet what that program held in the row is gone, so the rank is lost
 * although its device may come back. */
#include "power/xid.h"

#include <stddef.h>

static const struct {
    uint16_t code;
    ek_xid xid;
} table[] = {
    {13, {EK_XID_APPLICATION, "graphics engine exception"}},
    {31, {EK_XID_APPLICATION, "memory page fault"}},
    {32, {EK_XID_APPLICATION, "invalid or corrupted push buffer"}},
    {43, {EK_XID_APPLICATION, "a channel was reset after its program failed"}},
    {45, {EK_XID_APPLICATION, "channels were removed after an earlier error"}},
    {46, {EK_XID_LOST, "the device stopped processing"}},
    {48, {EK_XID_LOST, "uncorrectable (double-bit) memory error"}},
    {54, {EK_XID_REPORTED, "auxiliary power is not connected"}},
    {61, {EK_XID_REPORTED, "breakpoint of the power controller's firmware"}},
    {62, {EK_XID_LOST, "the power controller's firmware halted"}},
    {63, {EK_XID_REPORTED, "a faulty memory row will be remapped at the next reset"}},
    {64, {EK_XID_LOST, "a faulty memory row could not be remapped"}},
    {68, {EK_XID_APPLICATION, "video decoder exception"}},
    {69, {EK_XID_APPLICATION, "graphics engine class error"}},
    {74, {EK_XID_LOST, "NVLink error"}},
    {79, {EK_XID_LOST, "the device has fallen off the bus"}},
    {92, {EK_XID_REPORTED, "high rate of corrected memory errors"}},
    {94, {EK_XID_LOST, "uncorrectable memory error, contained: what the rank held is damaged"}},
    {95, {EK_XID_LOST, "uncorrectable memory error, not contained"}},
    {109, {EK_XID_APPLICATION, "a context switch timed out"}},
    {110, {EK_XID_LOST, "security engine fault"}},
    {119, {EK_XID_LOST, "the system processor (GSP) does not answer"}},
    {120, {EK_XID_LOST, "the system processor (GSP) failed"}},
    {136, {EK_XID_LOST, "an NVLink could not be trained"}},
    {140, {EK_XID_LOST, "uncorrectable memory error, not recovered"}},
    {143, {EK_XID_LOST, "the device could not be initialized"}},
    {154, {EK_XID_REPORTED, "the driver's recommended recovery action has changed"}},
};

ek_xid ek_xid_find(uint64_t code)
{
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (table[i].code == code)
            return table[i].xid;
    return (ek_xid){EK_XID_REPORTED, "not in evenkeel's table"};
}
