steps :: Int -> Int
steps 1 = 0
steps n
  | odd n = 1 + steps (3 * n + 1)
  | otherwise = 1 + steps (n `div` 2)

main :: IO ()
main = mapM_ (\n -> putStrLn (show n ++ " " ++ show (steps n))) [1 .. 30]
