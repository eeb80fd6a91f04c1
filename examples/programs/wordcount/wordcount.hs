import Data.List (group, sort)

main :: IO ()
main = interact (unlines . map count . group . sort . words)
  where
    count same = head same ++ " " ++ show (length same)
